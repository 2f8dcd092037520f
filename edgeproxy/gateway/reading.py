"""What the proxy needs to know of a body that it passes on as it came.

A usual body is read by msgspec, which makes nothing of what is not asked for. It judges bodies as the grammar of
`protocol.json_members` does. That one reads what is large, in pieces between which others have their turn, and what
msgspec has not taken: it says what is wrong there, or what is to be changed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import cache
from math import inf
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from edgeproxy.protocol.json_members import Grammar, Malformed, Member
from edgeproxy.protocol.node.request import MAX_PRIORITY
from edgeproxy.protocol.openai.checks import boolean, integer, required, text
from edgeproxy.protocol.openai.errors import invalid

AT_ONCE_BYTES = 2**18
"""A body up to this size is read in one go: a millisecond, if it is nothing but brackets."""
REFUSED = ("cache_salt", "kv_transfer_params", "resume")
"""What the proxy itself tells nodes: from a client they would reach into other tenants' caches."""

_SESSION_FIELDS = ("prompt_cache_key", "user")
_ROLE = b'"role"'
"""Once in each message as clients write them; within a text its quotes would be escaped."""
_NULL = b"null"
_BLANKS = b" \t\n\r"
_SMALL = ("model", "stream", "priority", *REFUSED, *_SESSION_FIELDS)
_LARGE = ("messages", "tools", "prompt", "tokens", "stream_options")
LENGTHS = ("max_completion_tokens", "max_tokens")
"""What limits an answer; the first that is there counts."""


class ChatRequest(msgspec.Struct, frozen=True, gc=False):
    body: bytes
    model: str
    stream: bool
    priority: int | None = None
    """As the client asked; it does not stand in `body` any more."""
    prompt: bytes = b""
    """What nodes could find in their caches: tools and messages, or a prompt, as the client wrote it."""
    session: bytes | None = None
    """`prompt_cache_key`, else `user`: requests that name the same one probably begin alike."""
    counted: bool = False
    """A stream is to tell the usage."""
    messages: int = 0
    """Of a chat; 0 for a prompt."""
    tools: bool = False

    def of_model(self, model: str, body: bytes) -> ChatRequest:
        """The same of another model, which `body` names."""
        return msgspec.structs.replace(self, model=model, body=body)


_ABSENT = Raw(b"")
_Label = Annotated[str, msgspec.Meta(max_length=2**14)]


class _Options(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class _Usual(msgspec.Struct, gc=False):
    """The members that decide, as they usually are. Of what is `Raw`, only the end has been looked for."""

    model: Annotated[_Label, msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: _Options | None = None
    messages: Raw = _ABSENT
    prompt: Raw = _ABSENT
    tokens: Raw = _ABSENT
    tools: Raw = _ABSENT
    prompt_cache_key: _Label | None = None
    user: _Label | None = None
    priority: UnsetType | None = UNSET
    cache_salt: None = None
    kv_transfer_params: None = None
    resume: None = None


_decode_usual = msgspec.json.Decoder(_Usual).decode
_decode_options = msgspec.json.Decoder(_Options).decode
_decode = msgspec.json.Decoder().decode


def usual(body: bytes) -> ChatRequest | None:
    """None where it must be read otherwise: it is large, or unusual, or wrong."""
    if len(body) > AT_ONCE_BYTES:
        return None
    try:
        if not body.isascii():
            body.decode()  # msgspec looks only at the UTF-8 of what it makes
        found = _decode_usual(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.priority is not UNSET:  # to be taken out
        return None
    options = found.stream_options
    session = found.prompt_cache_key or found.user
    messages, tools = bytes(found.messages), bytes(found.tools)
    if messages == _NULL:
        messages = b""
    if tools == _NULL:
        tools = b""
    prompt = tools + messages if messages else _plain(found)
    return ChatRequest(
        body,
        found.model,
        found.stream is True,
        None,
        prompt,
        session.encode() if session else None,
        options is not None and options.include_usage is True,
        messages.count(_ROLE),
        b"{" in tools,
    )


def careful(body: bytes) -> Generator[None, None, ChatRequest]:
    """Yields between pieces. Raises ApiError 400."""
    if not body:
        raise invalid("The request has no body: send a JSON object.", code="invalid_json")
    if body.lstrip(_BLANKS)[:1] == b"[":
        raise invalid("The body is a list: send a JSON object.", code="invalid_json")
    try:
        found = yield from grammar().members(body)
    except Malformed as error:
        raise invalid(f"The body is not valid UTF-8 JSON: {error}.", code="invalid_json") from None
    texts = {name: body[member.value : member.end] for name, member in found.items()}
    yield
    texts = {name: text for name, text in texts.items() if text != _NULL}
    small = {name: _outline(texts[name]) for name in _SMALL if name in texts}
    model = text(required(small, "model"), "model", len(body))  # one that no node serves is told so, however long
    stream = boolean(small, "stream")
    for name in REFUSED:
        if name in small:
            raise invalid(f"'{name}' is not accepted from clients: leave it out.", name, "unsupported_parameter")
    priority = integer(small, "priority", -MAX_PRIORITY, MAX_PRIORITY)
    messages, tools = texts.get("messages", b""), texts.get("tools", b"")
    count = 0
    for at in range(0, len(messages), AT_ONCE_BYTES):
        yield
        count += messages.count(_ROLE, at, at + AT_ONCE_BYTES + len(_ROLE) - 1)
    return ChatRequest(
        _without(body, found["priority"]) if "priority" in found else body,
        model,
        stream,
        priority,
        tools + messages if messages else texts.get("prompt") or texts.get("tokens", b""),
        _session(small),
        _counted(texts.get("stream_options")),
        count,
        b"{" in tools,
    )


@cache
def grammar() -> Grammar:
    """Of all members that the proxy reads or sets. Takes some milliseconds, once."""
    return Grammar(frozenset((*_SMALL, *_LARGE, *LENGTHS)))


def _plain(found: _Usual) -> bytes:
    """A prompt that is no chat."""
    prompt = bytes(found.prompt)
    if not prompt or prompt == _NULL:
        prompt = bytes(found.tokens)
    return b"" if prompt == _NULL else prompt


def _outline(text: bytes) -> Any:
    """A value; of a list or an object only that it is one, of a very long text only how it begins."""
    if text[0] == ord("["):
        return []
    if text[0] == ord("{"):
        return {}
    if len(text) > AT_ONCE_BYTES:
        return text[1:AT_ONCE_BYTES].decode(errors="ignore")
    try:
        return _decode(text)
    except msgspec.ValidationError:  # a number that is none of ours
        return inf


def _session(small: Mapping[str, Any]) -> bytes | None:
    for name in _SESSION_FIELDS:
        found = small.get(name)
        if isinstance(found, str) and found:
            return found.encode()
    return None


def _counted(options: bytes | None) -> bool:
    """What else stands there is the node's to judge."""
    try:
        return options is not None and _decode_options(options).include_usage is True
    except msgspec.DecodeError:
        return False


def _without(body: bytes, member: Member) -> bytes:
    """Raises ApiError 400 where the member is there more than once."""
    if member.times > 1:
        raise invalid("'priority' is there more than once.", "priority", "invalid_value")
    start, end = member.key, member.end
    while body[end] in _BLANKS:
        end += 1
    if body[end] == ord(","):
        end += 1
    else:
        while body[start - 1] in _BLANKS:
            start -= 1
        start -= body[start - 1] == ord(",")
    view = memoryview(body)
    return b"".join((view[:start], view[end:]))
