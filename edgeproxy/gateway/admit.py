"""Which requests go on to a node, and as what: one pass over head and body, before anything is decided."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import orjson

from edgeproxy.access.tenants import Tenant
from edgeproxy.gateway.bodies import FREE_BYTES, Room
from edgeproxy.gateway.watch import ClientGone, Receive
from edgeproxy.protocol.node.request import BUDGET_HEADER, MAX_PRIORITY, POLICY_HEADER, Terms, budget_ms, strict
from edgeproxy.protocol.openai.bodies import compressed, not_json, too_large
from edgeproxy.protocol.openai.checks import boolean, integer, required, text
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.headers import media_type
from edgeproxy.protocol.openai.schema import parse_json

Scope = Mapping[str, Any]
Fields = Mapping[bytes, bytes]

REFUSED = frozenset({"cache_salt", "kv_transfer_params", "resume"})
"""What the proxy itself tells nodes: from a client they would reach into other tenants' caches."""

_SESSION_FIELDS = ("prompt_cache_key", "user")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_FORWARDED = frozenset((b"forwarded", b"x-forwarded-for", b"via"))


class ChatRequest(NamedTuple):
    """What the proxy needs to know of a body that it passes on as it came."""

    body: bytes
    model: str
    stream: bool
    priority: int | None = None
    """As the client asked; it does not stand in `body` any more."""
    prompt: bytes = b""
    """What nodes could find in their caches: tools and messages, or a prompt, as JSON."""
    session: bytes | None = None
    """`prompt_cache_key`, else `user`: requests that name the same one probably begin alike."""
    counted: bool = False
    """A stream is to tell the usage."""
    messages: int = 0
    """Of a chat; 0 for a prompt."""
    tools: bool = False


def request_id(fields: Fields, rng: Random) -> bytes:
    """The client's own where it is harmless in logs and headers, else a new one.

    128 bits of a generator that the system seeded: no two alike, and no count of requests to be read from them. It is
    not a cryptographic one, because nothing takes an id for a right: it names a request and opens nothing.
    """
    given = fields.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return b"req_%032x" % rng.getrandbits(128)


def may_see_details(scope: Scope, fields: Fields, tenant: Tenant) -> bool:
    """Timings and topology are shown to tenants so configured, and on this machine; what another proxy forwards comes
    from loopback too, but is not from here."""
    if tenant.disclose:
        return True
    client = scope.get("client")
    local = client is not None and (client[0] == "::1" or client[0].startswith("127."))
    return local and _FORWARDED.isdisjoint(fields)


async def read_chat(fields: Fields, receive: Receive, limit: int, room: Room) -> ChatRequest:
    """Raises ApiError (400, 413, 415, 503) and ClientGone."""
    kind = fields.get(b"content-type")
    if kind != b"application/json" and media_type(kind) != b"application/json":
        raise not_json()
    if fields.get(b"content-encoding", b"identity") != b"identity":
        raise compressed()
    length = fields.get(b"content-length")
    if length is not None and length.isdigit():
        if len(length) > 15 or int(length) > limit:
            raise too_large(limit)
        if int(length) > FREE_BYTES:
            room.cover(int(length))
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > limit:
            raise too_large(limit)
        if size > FREE_BYTES:
            room.cover(size)
        more = message.get("more_body", False)
    return parse_chat(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def parse_chat(body: bytes) -> ChatRequest:
    """Checks what the proxy acts on; the rest of the schema is the node's to judge. Raises ApiError 400."""
    value = parse_json(body)
    model = text(required(value, "model"), "model", len(body))  # one that no node serves is told so, however long
    stream = boolean(value, "stream")
    for name in REFUSED.intersection(value):
        if value[name] is not None:
            raise invalid(f"'{name}' is not accepted from clients: leave it out.", name, "unsupported_parameter")
    priority = None
    if "priority" in value:
        priority = integer(value, "priority", -MAX_PRIORITY, MAX_PRIORITY)
        del value["priority"]
        body = _dumped(value)
    options = value.get("stream_options")
    counted = isinstance(options, dict) and options.get("include_usage") is True
    messages, tools = value.get("messages"), value.get("tools")
    return ChatRequest(
        body,
        model,
        bool(stream),
        priority,
        _prompt(value),
        _session(value),
        counted,
        len(messages) if isinstance(messages, list) else 0,
        bool(tools),
    )


def terms(tenant: Tenant, salt: bytes, priority: int | None, fields: Fields) -> Terms:
    """What a native node is told of a request: its tenant's salt, its priority as far as the tenant may have it, and
    what the client says of its time.

    Raises ApiError 400.
    """
    budget, refused = budget_ms(fields.get(BUDGET_HEADER)), strict(fields.get(POLICY_HEADER))
    return Terms(salt, max(priority or 0, tenant.priority), budget, refused)


def _prompt(value: dict[str, Any]) -> bytes:
    messages, tools = value.get("messages"), value.get("tools")
    if messages is None:
        return _dumped(value.get("prompt", value.get("tokens")))
    return _dumped(messages if tools is None else [tools, messages])


def _dumped(value: object) -> bytes:
    """Raises ApiError 400."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise invalid("The body is nested too deeply.", code="invalid_json") from None


def _session(value: dict[str, Any]) -> bytes | None:
    for name in _SESSION_FIELDS:
        found = value.get(name)
        if isinstance(found, str) and found:
            return found.encode("utf-8", "surrogatepass")
    return None
