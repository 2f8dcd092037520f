"""One HTTP/3 request and its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Protocol

from aioquic.h3.connection import ErrorCode

from edgeproxy.client.aioquic_internals import H3
from edgeproxy.client.any_quic import AnyQuic
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.asgi_exchange import AsgiExchange
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.message_head import Headers, RequestHead, response_fields, still_owed
from edgeproxy.wire.service import Service
from edgeproxy.wire.stall import BodyPace
from edgeproxy.wire.wire_error import body_too_large, too_slow, wire_error


class Carrier(Protocol):
    """The connection under a request."""

    quic: AnyQuic
    requests: dict[int, Request]
    blocked: dict[Request, None]
    """Requests whose `send()` waits; asked again after every flush."""

    @property
    def h3(self) -> H3: ...

    def wake(self) -> None: ...

    def finished(self, request: Request) -> None:
        """The application has returned."""


class Request(AsgiExchange):
    __slots__ = (
        "_blocked_since",
        "_blocked_unsent",
        "_bodyless",
        "_carrier",
        "_fields",
        "_left",
        "_length",
        "_pace",
        "_total",
        "_writer",
        "stream_id",
    )

    def __init__(
        self, service: Service, carrier: Carrier, stream_id: int, head: RequestHead, ingress: Ingress, scope: Scope
    ) -> None:
        super().__init__(service, ingress, scope, head.expects_continue)
        self.stream_id = stream_id
        self._carrier = carrier
        # the request's body
        self._length = head.content_length
        self._total = 0
        self._pace = BodyPace(service.limits.stalled_read_s, service.limits.body_bytes_per_s)
        self._pace.begin(time.monotonic())
        # the response
        self._fields: Headers = []
        self._left: int | None = None
        self._bodyless = head.method == "HEAD"
        self._writer: asyncio.Future[None] | None = None
        self._blocked_since = 0.0
        self._blocked_unsent = 0

    # ---- the connection's side

    def arrived(self, data: bytes, end: bool) -> None:
        """Body octets, and whether they are the last; the checks of RFC 9114 section 4.1.2 on their number."""
        if self.gone or self.answered:
            return
        self._pace.arrived(len(data), time.monotonic())
        self._total += len(data)
        if self._length is not None and (self._total > self._length or (end and self._total < self._length)):
            self.reset(ErrorCode.H3_MESSAGE_ERROR)
        elif self._total > self._service.limits.body_bytes:
            self.refuse(body_too_large(self._service.limits.body_bytes))
        else:
            if data:
                self._body.append(data)
                self._carrier.quic.hold(self.stream_id, len(data))
            self.complete = end
            self._wake_reader()

    def reset(self, code: ErrorCode) -> None:
        """End both directions so that neither side can take what it has for a whole message."""
        self._carrier.h3.abort(self.stream_id, code)
        self.lose()
        self._carrier.wake()

    def refuse(self, error: ApiError) -> None:
        self._ingress.refused = error
        if self._started:
            self.reset(ErrorCode.H3_INTERNAL_ERROR)
            return
        date, identity = self._service.date(), self._ingress.request_id
        write_error(self._carrier.h3, self.stream_id, error, date, bodyless=self._bodyless, request_id=identity)
        self.lose()
        self._carrier.wake()

    def _lost(self) -> None:
        self._carrier.quic.forget(self.stream_id)
        self._unblock()

    def flushed(self) -> None:
        if self._carrier.quic.unsent(self.stream_id) <= self._low_water:
            self._unblock()

    def sweep(self, now: float) -> None:
        if self.gone or self.answered:
            return
        if self._reader is None or self.complete:
            self._pace.begin(now)
        elif self._pace.too_slow(now):
            self.refuse(too_slow())
            return
        if self._writer is None:
            return
        unsent = self._carrier.quic.unsent(self.stream_id)
        if unsent < self._blocked_unsent:
            self._blocked_unsent, self._blocked_since = unsent, now
        elif now - self._blocked_since > self._service.limits.stalled_write_s:
            self.reset(ErrorCode.H3_REQUEST_CANCELLED)

    @property
    def _high_water(self) -> int:
        limits = self._service.limits
        return min(limits.unsent_bytes, limits.unsent_connection_bytes // max(1, len(self._carrier.requests)))

    @property
    def _low_water(self) -> int:
        return self._high_water // 4

    def _unblock(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    # ---- the application's side

    def _returned(self) -> None:
        self._carrier.finished(self)

    def _write_continue(self) -> None:
        self._carrier.h3.write_head(self.stream_id, [(b":status", b"100")])
        self._carrier.wake()

    def _taken(self, size: int) -> None:
        if size and self._carrier.quic.release(self.stream_id, size):
            self._carrier.wake()

    def _announce(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._fields, self._left = response_fields(status, headers, self._service.date())
        if (alt_svc := self._service.alt_svc()) is not None:
            self._fields.append((b"alt-svc", alt_svc))
        self._bodyless = self._bodyless or status in (204, 304)

    def _pass(self, data: bytes, end: bool) -> Awaitable[None] | None:
        if self._bodyless:
            data = b""
        else:
            self._left = still_owed(self._left, len(data), end)
        limit = self._high_water
        if len(data) > limit:
            return self._write_as_room_comes(data, end, limit)
        self._write(data, end)
        return self._drain() if self._carrier.quic.unsent(self.stream_id) > limit else None

    async def _write_as_room_comes(self, data: bytes, end: bool, limit: int) -> None:
        while len(data) > limit:
            self._write(data[:limit], end=False)
            data = data[limit:]
            await self._drain()
        self._write(data, end)
        if self._carrier.quic.unsent(self.stream_id) > limit:
            await self._drain()

    def _write(self, data: bytes, end: bool) -> None:
        h3 = self._carrier.h3
        if not self._started:
            self._started = True
            h3.write_head(self.stream_id, self._fields, data, end)
        elif data or end:
            h3.write_data(self.stream_id, data, end)
        if end:
            self.answered = True
            if not self.complete:
                h3.ignore(self.stream_id, ErrorCode.H3_NO_ERROR)
            self._body.clear()
            self._carrier.quic.forget(self.stream_id)
            self._wake_reader()
        self._carrier.wake()

    async def _drain(self) -> None:
        quic = self._carrier.quic
        self._blocked_since, self._blocked_unsent = self._service.loop.time(), quic.unsent(self.stream_id)
        self._carrier.blocked[self] = None
        try:
            while not self.gone and quic.unsent(self.stream_id) > self._low_water:
                self._writer = self._service.loop.create_future()
                await self._writer
        finally:
            self._writer = None
            self._carrier.blocked.pop(self, None)
        self._check_gone()


def write_error(
    h3: H3, stream_id: int, error: ApiError, date: bytes, *, bodyless: bool = False, request_id: bytes | None = None
) -> None:
    """A complete answer of the wire itself; what is still to come of the request is not wanted."""
    headers, body = wire_error(error, request_id)
    fields, _ = response_fields(error.status, headers, date)
    h3.write_head(stream_id, fields, b"" if bodyless else body, end=True)
    h3.ignore(stream_id, ErrorCode.H3_NO_ERROR)
