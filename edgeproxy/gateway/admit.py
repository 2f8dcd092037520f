"""Which requests go on to a node, and as what: one pass over head and body, before anything is decided."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from random import Random
from typing import Any

from edgeproxy.access.tenants import Tenant
from edgeproxy.gateway.bodies import FREE_BYTES, Room, in_turns
from edgeproxy.gateway.reading import ChatRequest, careful, grammar, usual
from edgeproxy.gateway.watch import ClientGone, Receive
from edgeproxy.protocol.node.request import BUDGET_HEADER, POLICY_HEADER, Terms, budget_ms, strict
from edgeproxy.protocol.openai.bodies import compressed, not_json, too_large
from edgeproxy.protocol.openai.headers import media_type

Scope = Mapping[str, Any]
Fields = Mapping[bytes, bytes]

REQUEST_ID = b"x-request-id"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")
_MOST_DIGITS = 15
_FORWARDED = frozenset((b"forwarded", b"x-forwarded-for", b"via"))


def request_id(fields: Fields, rng: Random) -> bytes:
    """The client's own where it is harmless in logs and headers, else a new one.

    128 bits of a generator that the system seeded: no two alike, and no count of requests to be read from them. It is
    not a cryptographic one, because nothing takes an id for a right: it names a request and opens nothing.
    """
    given = fields.get(REQUEST_ID)
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
    """Checks what the proxy acts on; the rest of the schema is the node's to judge.

    Raises ApiError (400, 413, 415, 503) and ClientGone.
    """
    kind = fields.get(b"content-type")
    if kind != b"application/json" and media_type(kind) != b"application/json":
        raise not_json()
    if b"content-encoding" in fields and fields[b"content-encoding"] != b"identity":
        raise compressed()
    length = fields.get(b"content-length")
    if length is not None and length.isdigit():
        if len(length) > _MOST_DIGITS:
            raise too_large(limit)
        _let_in(int(length), limit, room)
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        body = await _whole(body, receive, limit, room)
    else:
        _let_in(len(body), limit, room)
    found = usual(body)
    return await _read(body, room) if found is None else found


async def _whole(body: bytes, receive: Receive, limit: int, room: Room) -> bytes:
    pieces, size, more = [body], len(body), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        _let_in(size, limit, room)
        more = message.get("more_body", False)
    return b"".join(pieces)


def _let_in(size: int, limit: int, room: Room) -> None:
    if size > limit:
        raise too_large(limit)
    if size > FREE_BYTES:
        room.cover(size)


async def _read(body: bytes, room: Room) -> ChatRequest:
    """In pieces."""
    await asyncio.to_thread(grammar)
    return await in_turns(careful(body), room.turns)


def terms(tenant: Tenant, salt: bytes, priority: int | None, fields: Fields) -> Terms:
    """What a native node is told of a request: its tenant's salt, its priority as far as the tenant may have it, and
    what the client says of its time.

    Raises ApiError 400.
    """
    budget, refused = budget_ms(fields.get(BUDGET_HEADER)), strict(fields.get(POLICY_HEADER))
    return Terms(salt, max(priority or 0, tenant.priority), budget, refused)


__all__ = ["REQUEST_ID", "ChatRequest", "Fields", "may_see_details", "read_chat", "request_id", "terms"]
