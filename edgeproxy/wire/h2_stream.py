"""One HTTP/2 request and its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from typing import Protocol

from h2.errors import ErrorCodes

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.asgi_exchange import AsgiExchange
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.message_head import Headers, RequestHead, response_fields, still_owed
from edgeproxy.wire.service import Service
from edgeproxy.wire.stall import BodyPace
from edgeproxy.wire.wire_error import body_too_large, too_slow, wire_error


class Carrier(Protocol):
    """The connection under a stream. What is written to a stream that has ended meanwhile is dropped."""

    def write_head(self, stream_id: int, fields: Headers, *, end: bool) -> None: ...

    def write_data(self, stream_id: int, data: bytes, *, end: bool) -> None: ...

    def room(self, stream_id: int) -> int:
        """How many body bytes may be written now: the flow-control windows (RFC 9113 section 5.2), one frame, and
        none while the client does not take what was written."""

    def waits(self, stream_id: int) -> None:
        """The stream has something to write and no room: it is woken after those that wait already."""

    def taken(self, stream_id: int, size: int) -> None:
        """Flow-controlled bytes are done with; the client may send as many again."""

    def reset(self, stream_id: int, code: ErrorCodes) -> None: ...

    def nudge(self) -> None:
        """Send some frame: curl 7 waits for one when it ends an upload after it has read the whole answer."""

    def settled(self, stream: Stream) -> None:
        """Asked to forget the stream once it is `over`."""


class Stream(AsgiExchange):
    """`ended`: nothing more passes, in either direction."""

    __slots__ = (
        "_answered_at",
        "_bodyless",
        "_carrier",
        "_dropped",
        "_fields",
        "_left",
        "_length",
        "_limits",
        "_pace",
        "_total",
        "_unread",
        "_writer",
        "_wrote",
        "ended",
        "id",
    )

    def __init__(
        self, service: Service, carrier: Carrier, stream_id: int, head: RequestHead, ingress: Ingress, scope: Scope
    ) -> None:
        super().__init__(service, ingress, scope, head.expects_continue)
        self.id = stream_id
        self.ended = False
        self._limits = service.limits
        self._carrier = carrier
        # the request's body
        self._length = head.content_length
        self._total = 0
        self._unread = 0
        """Flow-controlled bytes not yet given back."""
        self._pace = BodyPace(self._limits.stalled_read_s, self._limits.body_bytes_per_s)
        self._pace.begin(time.monotonic())
        # the response
        self._fields: Headers = []
        self._left: int | None = None
        self._bodyless = head.method == "HEAD"
        self._writer: asyncio.Future[None] | None = None
        self._wrote = 0.0
        self._answered_at = 0.0
        self._dropped = 0

    @property
    def over(self) -> bool:
        return self.ended and self._task is None

    # ---- the connection's side

    def arrived(self, data: bytes, flow_controlled: int) -> None:
        if self.gone or self.answered:
            self._drop(flow_controlled)
            return
        self._pace.arrived(len(data), time.monotonic())
        self._total += len(data)
        self._unread += flow_controlled
        if self._length is not None and self._total > self._length:
            self.malformed()
        elif self._total > self._limits.body_bytes:
            self.refuse(body_too_large(self._limits.body_bytes))
        else:
            self._body.append(data)
            self._wake_reader()

    def finished(self) -> None:
        """The request has ended."""
        if not (self.answered or self.gone) and self._length is not None and self._total != self._length:
            self.malformed()
            return
        self.complete = True
        if self.answered:
            self._carrier.nudge()
            self._end()
        self._wake_reader()

    def malformed(self) -> None:
        """An error of this stream alone (RFC 9113 section 8.1.1)."""
        self._reset(ErrorCodes.PROTOCOL_ERROR)

    def lose(self) -> None:
        """The client, or the connection, has ended the stream."""
        super().lose()
        self._end()

    def refuse(self, error: ApiError) -> None:
        self._ingress.refused = error
        super().lose()
        if self._started:
            self._reset(ErrorCodes.INTERNAL_ERROR)
            return
        headers, body = wire_error(error, self._ingress.request_id)
        self._fields, _ = response_fields(error.status, headers, self._service.date())
        if self._carrier.room(self.id) < len(body):
            self._reset(ErrorCodes.CANCEL)
        else:
            self._write(b"" if self._bodyless else body, end=True)

    def writable(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    def sweep(self, now: float) -> None:
        limits = self._limits
        if self.answered:
            # Not at once: some clients take even NO_ERROR for a failure of the whole exchange.
            if now - self._answered_at >= limits.linger_s:
                self._reset(ErrorCodes.NO_ERROR)
        elif self._writer is not None and now - self._wrote >= limits.stalled_write_s:
            self._reset(ErrorCodes.CANCEL)
        elif self._reader is None or self.complete:
            self._pace.begin(now)
        elif self._pace.too_slow(now):
            self.refuse(too_slow())

    def _lost(self) -> None:
        self._drop(self._unread)
        self._unread = 0
        self.writable()

    def _drop(self, size: int) -> None:
        if size and not self.ended:
            self._carrier.taken(self.id, size)
            self._dropped += size
            if self._dropped > self._limits.linger_bytes:
                self._reset(ErrorCodes.NO_ERROR)

    def _reset(self, code: ErrorCodes) -> None:
        super().lose()
        if not self.ended:
            self._carrier.reset(self.id, code)
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._carrier.settled(self)

    # ---- the application's side

    def _returned(self) -> None:
        self._carrier.settled(self)

    def _write_continue(self) -> None:
        self._carrier.write_head(self.id, [(b":status", b"100")], end=False)

    def _taken(self, size: int) -> None:
        if self._unread:
            self._carrier.taken(self.id, self._unread)
            self._unread = 0

    def _announce(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        fields, self._left = response_fields(status, headers, self._service.date())
        if (alt_svc := self._service.alt_svc()) is not None:
            fields.append((b"alt-svc", alt_svc))
        self._fields = fields
        self._bodyless = self._bodyless or status in (204, 304)

    def _pass(self, data: bytes, end: bool) -> Awaitable[None] | None:
        if self._bodyless:
            data = b""
        else:
            self._left = still_owed(self._left, len(data), end)
        self._wrote = time.monotonic()
        if len(data) > self._carrier.room(self.id):
            return self._write_as_room_comes(data, end)
        if data or end or not self._started:
            self._write(data, end)
        return None

    async def _write_as_room_comes(self, data: bytes, end: bool) -> None:
        while data:
            room = self._carrier.room(self.id)
            if room <= 0:
                await self._wait()
                continue
            self._write(data[:room], end and len(data) <= room)
            self._wrote = time.monotonic()
            data = data[room:]
            if data:
                await asyncio.sleep(0)  # a frame each: nobody takes all of a window that others wait for
                self._check_gone()

    async def _wait(self) -> None:
        if not self._started:
            self._write(b"", end=False)  # the head needs no window
        self._carrier.waits(self.id)
        self._writer = self._service.loop.create_future()
        try:
            await self._writer
        finally:
            self._writer = None
        self._check_gone()

    def _write(self, data: bytes, end: bool) -> None:
        head_alone = not self._started and end and not data
        if not self._started:
            self._started = True
            self._carrier.write_head(self.id, self._fields, end=head_alone)
        if data or (end and not head_alone):
            self._carrier.write_data(self.id, data, end=end)
        if end:
            self._answered()

    def _answered(self) -> None:
        self.answered = True
        self._answered_at = time.monotonic()
        self._body.clear()
        self._drop(self._unread)
        self._unread = 0
        self._wake_reader()
        if self.complete:
            self._end()
