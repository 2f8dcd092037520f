"""One HTTP/1.1 request and its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.asgi_exchange import AsgiExchange
from edgeproxy.wire.h1_memory import RequestHead
from edgeproxy.wire.h1_response import CONTINUE, Framing, encode_error, encode_head
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.service import Service


class Carrier(Protocol):
    """The connection under an exchange."""

    write_paused: bool
    write: Callable[[bytes], None]

    async def writable(self) -> None:
        """Return once the client has taken enough of what was written, or is gone."""

    def body_taken(self) -> None:
        """The application has read everything that had arrived."""

    def answered(self, *, close: bool) -> None:
        """The whole response is written."""

    def cut(self, *, reset: bool) -> None:
        """End the connection so that the client cannot take what it has for a whole response."""

    def is_last_request(self) -> bool:
        """No request after the running one will be answered on this connection."""


class Exchange(AsgiExchange):
    __slots__ = ("_carrier", "_framing", "_head", "_headers", "_status", "keep_alive", "unread")

    def __init__(
        self,
        service: Service,
        carrier: Carrier,
        ingress: Ingress,
        scope: Scope,
        head: RequestHead,
    ) -> None:
        super().__init__(service, ingress, scope, head.expects_continue)
        self.keep_alive = head.keep_alive
        """The request allows another one behind it."""
        self.unread = 0
        """Body bytes that the application has not taken yet."""
        self._carrier = carrier
        self._head = head
        self._status = 0
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._framing: Framing | None = None

    # ---- the connection's side

    def arrived_whole(self, body: bytes, moment: float) -> None:
        """Before the application is called. The last byte of the request was read then."""
        self._body.append(body)
        self.unread = len(body)
        self.complete = True
        self._ingress.last_byte = moment

    def body_arrived(self, data: bytes) -> None:
        self._body.append(data)
        self.unread += len(data)
        if self._reader is not None:
            self._wake_reader()

    def ended(self, moment: float) -> None:
        """The last byte of the request was read then."""
        self.complete = True
        self._ingress.last_byte = moment
        if self._reader is not None:
            self._wake_reader()

    def refuse(self, error: ApiError) -> None:
        self._ingress.refused = error
        framing = self._framing
        self.lose()
        if framing is None:
            head_request = self._head.method == "HEAD"
            identity = self._ingress.request_id
            self._carrier.write(encode_error(self._service, error, head_request=head_request, request_id=identity))
            self._carrier.answered(close=True)
        else:
            self._carrier.cut(reset=framing.until_close)

    # ---- the application's side

    def _write_continue(self) -> None:
        self._carrier.write(CONTINUE)

    def _taken(self, size: int) -> None:
        self.unread = 0
        if not self.complete:
            self._carrier.body_taken()

    def _announce(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._status, self._headers = status, headers

    def _pass(self, data: bytes, end: bool) -> Awaitable[None] | None:
        framing = self._framing
        if framing is None:
            head, framing = encode_head(
                self._service,
                self._status,
                self._headers,
                len(data) if end else None,
                self._head.method == "HEAD",
                self._head.version == "1.0",
                not (self.keep_alive and self.complete) or self._carrier.is_last_request(),
            )
            data = head + framing.encode(data, not end)
            self._framing, self._started = framing, True
        else:
            data = framing.encode(data, not end)
        if data:
            self._carrier.write(data)
        if end:
            self.answered = True
            if self._reader is not None:
                self._wake_reader()
            self._carrier.answered(close=framing.close)
            return None
        return self._writable() if self._carrier.write_paused else None

    async def _writable(self) -> None:
        await self._carrier.writable()
        self._check_gone()
