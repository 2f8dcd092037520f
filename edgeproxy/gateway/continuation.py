"""A stream that goes on from its text alone, for nodes that offer no more (`continue_final_message: true`).

Approximate, and said to be: another model instance goes on with the partial answer as its own. What was sampled is not
known, so tokens, stop strings over the seam and a seed are not as in an unbroken run.
"""

from __future__ import annotations

from typing import Any

import orjson
from msgspec import Raw

from edgeproxy.protocol.json_edit import members, written
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.sse import DONE, Event, encode, encode_comment

MAX_CHARS = 2**18
SEAM = encode_comment(b"another node goes on from the text so far")
_ONLY_WHOLE = ("tools", "functions", "logprobs", "response_format")
"""Requests whose answer is more than text, or must be of one piece."""
_NOTHING = (b"null", b"false", b"0", b'""', b"[]", b"{}")
_LIMITS = ("max_tokens", "max_completion_tokens")
_MOST_DIGITS = 15
_PLAIN = {"role", "content", "refusal"}


class Said:
    """The text of a stream so far."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0
        self._sound = True
        self._finished = False
        self._head: dict[str, Any] = {}
        self.chunks = 0
        """Of text: about as many as tokens."""

    def add(self, event: Event) -> None:
        if event.comment or not self._sound:
            return
        if event.data == DONE:
            self._finished = True
            return
        try:
            self._add(orjson.loads(event.data))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._sound = False

    def _add(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            return
        if not self._head:
            self._head = {name: chunk[name] for name in ("id", "created", "model") if name in chunk}
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            text = delta.get("content") or ""
            self._chars += len(text)
            others = any(value for name, value in delta.items() if name not in _PLAIN)
            self._sound = self._sound and not others and choice["index"] == 0 and self._chars <= MAX_CHARS
            self._finished = self._finished or choice.get("finish_reason") is not None
            if text:
                self._pieces.append(text)
                self.chunks += 1

    def request(self, body: bytes) -> bytes | None:
        """The client's request with what was said as its last message; None where that would not do."""
        if not self._sound or self._finished or not self._pieces:
            return None
        try:
            value = members(body)
        except ApiError:
            return None
        messages = bytes(value.get("messages", b""))
        if messages[:1] != b"[" or _text(value, "n") not in (b"null", b"1"):
            return None
        if any(_text(value, name) not in _NOTHING for name in _ONLY_WHOLE):
            return None
        value["messages"] = Raw(_with_item(messages, {"role": "assistant", "content": "".join(self._pieces)}))
        value |= {"continue_final_message": Raw(b"true"), "add_generation_prompt": Raw(b"false")}
        for name in _LIMITS:
            limit = _text(value, name)
            if limit.isdigit() and len(limit) <= _MOST_DIGITS:
                value[name] = Raw(b"%d" % max(1, int(limit) - self.chunks))
        return written(value)

    def rename(self, event: Event, before: int) -> bytes:
        """An event of the node that goes on, as one of the stream that the client has. `before`: chunks of text that
        the nodes before it sent."""
        if event.comment or event.data == DONE:
            return event.raw
        try:
            chunk = orjson.loads(event.data)
            choices = chunk.get("choices") or []
            for choice in choices:
                choice.get("delta", {}).pop("role", None)
            usage = chunk.get("usage")
            if isinstance(usage, dict):
                usage["prompt_tokens"] -= before
                usage["completion_tokens"] += before
        except (ValueError, KeyError, TypeError, AttributeError):
            return event.raw
        if choices and not usage and not any(_shows(choice) for choice in choices):
            return b""
        return encode(orjson.dumps(chunk | self._head))


def _text(value: dict[str, Raw], name: str) -> bytes:
    found = value.get(name)
    return b"null" if found is None else bytes(found)


def _with_item(items: bytes, item: object) -> bytes:
    """A list as it is written, with one item more."""
    before = items[:-1].rstrip()
    return b"%b%b%b]" % (before, b"" if before == b"[" else b",", orjson.dumps(item))


def _shows(choice: dict[str, Any]) -> bool:
    return bool(choice.get("finish_reason") or any((choice.get("delta") or {}).values()))
