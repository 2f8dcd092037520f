"""One HTTP request under plain ASGI: fields, a bounded body, an answer, and the client's leaving."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from edgeproxy.protocol.openai.bodies import compressed, not_json, too_large
from edgeproxy.protocol.openai.errors import ApiError
from engine.refusals import too_many

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]

JSON: Headers = ((b"content-type", b"application/json"),)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9_-]{1,64}")


class Bodies:
    """What the bodies of all requests that are being answered take together."""

    def __init__(self, most: int) -> None:
        """most: bytes."""
        self._most = most
        self.held = 0

    @contextmanager
    def room(self) -> Iterator[Callable[[int], None]]:
        """Of one request: to be called with each piece's bytes, which raises ApiError 429 where there is no room."""
        taken = 0

        def take(nbytes: int) -> None:
            nonlocal taken
            if self.held + nbytes > self._most:
                raise too_many(self._most, "bytes of request bodies", "too_many_requests")
            taken += nbytes
            self.held += nbytes

        try:
            yield take
        finally:
            self.held -= taken


class ClientGone(Exception):
    """The client left: there is nobody to answer."""


class Exchange:
    """A request and its answer. `always` gives the header fields that every answer carries, at the time it starts."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, arrived: float, always: Callable[[Exchange], Headers]
    ) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.arrived = arrived
        self.started = False
        """The status is sent: an error can no longer change it."""
        self.siblings = 0
        """Further answers to this very request, which have just begun: no other request waits behind them."""
        self.failure: ApiError | None = None
        """What the caller was told in band, its status being sent."""
        self.gone = False
        """The client has left; once all is said, that means nothing."""
        self.traced = b""
        """Of its own span, where there is one: what tells the caller of it."""
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of a repeated field the first
        self._receive = receive
        self._send = send
        self._always = always
        given = self.header(b"x-request-id")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(16).encode()

    def header(self, name: bytes) -> bytes:
        return self._headers.get(name, b"")

    def field(self, name: bytes) -> bytes | None:
        """None where it is absent, which an empty one is not."""
        return self._headers.get(name)

    async def json_body(self, limit: int, take: Callable[[int], None]) -> bytes:
        """take: room for all bodies. Raises ApiError 415, 413 or what `take` does, ClientGone."""
        media, _, parameters = self.header(b"content-type").partition(b";")
        charset = parameters.strip().lower()
        if media.strip().lower() != b"application/json" or charset not in (b"", b"charset=utf-8", b'charset="utf-8"'):
            raise not_json()
        if self.header(b"content-encoding") not in (b"", b"identity"):
            raise compressed()
        announced = self.header(b"content-length")
        if announced.isdigit() and int(announced) > limit:
            raise too_large(limit, closes=True)
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            if len(body) + len(piece) > limit:
                raise too_large(limit, closes=True)
            take(len(piece))
            body += piece
            if not message.get("more_body", False):
                return bytes(body)

    @asynccontextmanager
    async def watched(self, gone: Callable[[], None]) -> AsyncIterator[None]:
        """Calls `gone` as soon as the client leaves. Only after the body was read."""
        watcher = asyncio.create_task(self._watch(gone))
        try:
            yield
        finally:
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher

    async def _watch(self, gone: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        gone()

    async def respond(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = JSON) -> None:
        """Raises ClientGone, as `start` and `write` do."""
        await self.start(status, (*headers, (b"content-length", str(len(body)).encode())))
        await self.write(b"" if self.method == "HEAD" else body, more=False)

    async def start(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], late: Callable[[], Headers] = tuple
    ) -> None:
        """`late`: asked for after all others."""
        self.started = True
        always = ((b"x-request-id", self.request_id), *self._always(self))
        await self._told({"type": "http.response.start", "status": status, "headers": [*headers, *always, *late()]})

    async def write(self, body: bytes, *, more: bool) -> None:
        await self._told({"type": "http.response.body", "body": body, "more_body": more})

    async def _told(self, message: Message) -> None:
        """Raises ClientGone."""
        try:
            await self._send(message)
        except OSError as error:  # ASGI HTTP 2.4: nobody reads any more
            self.gone = True
            raise ClientGone from error
