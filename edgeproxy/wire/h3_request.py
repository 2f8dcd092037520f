"""One HTTP/3 request and its answer: `receive` and `send` of one application call."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from aioquic.h3.connection import ErrorCode

from edgeproxy.client.aioquic_internals import H3, Quic
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.message_head import Headers, RequestHead, response_fields
from edgeproxy.wire.service import ClientGone, Message, Service
from edgeproxy.wire.wire_error import body_too_large, wire_error

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """The connection under a request."""

    quic: Quic
    requests: dict[int, Request]
    blocked: dict[Request, None]
    """Requests whose `send()` waits; asked again after every flush."""

    @property
    def h3(self) -> H3: ...

    def wake(self) -> None: ...

    def finished(self, request: Request) -> None:
        """The application has returned."""


class Request:
    """`gone` is the one flag that ends everything: the client left, or the wire itself has answered or given up."""

    __slots__ = (
        "_blocked_since",
        "_blocked_unsent",
        "_body",
        "_bodyless",
        "_carrier",
        "_delivered",
        "_expects_continue",
        "_fields",
        "_grace",
        "_heard",
        "_ingress",
        "_left",
        "_length",
        "_news",
        "_reading",
        "_service",
        "_started",
        "_task",
        "_total",
        "_writer",
        "answered",
        "complete",
        "gone",
        "scope",
        "stream_id",
    )

    def __init__(
        self, service: Service, carrier: Carrier, stream_id: int, head: RequestHead, ingress: Ingress, scope: Scope
    ) -> None:
        self.stream_id = stream_id
        self.scope = scope
        self.complete = False
        """The request has arrived to its end."""
        self.answered = False
        """The whole response is written."""
        self.gone = False
        self._service = service
        self._carrier = carrier
        self._ingress = ingress
        self._task: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        # the request's body
        self._body: list[bytes] = []
        self._length = head.content_length
        self._total = 0
        self._delivered = False
        self._expects_continue = head.expects_continue
        self._news = asyncio.Event()
        self._reading = False
        self._heard = service.loop.time()
        # the response
        self._fields: Headers | None = None
        self._left: int | None = None
        self._bodyless = head.method == "HEAD"
        self._started = False
        self._writer: asyncio.Future[None] | None = None
        self._blocked_since = 0.0
        self._blocked_unsent = 0

    # ---- the connection's side

    def start(self) -> None:
        self._task = self._ingress.task = self._service.loop.create_task(self._run())
        self._service.tasks.add(self._task)

    def arrived(self, data: bytes, end: bool) -> None:
        """Body octets, and whether they are the last; the checks of RFC 9114 section 4.1.2 on their number."""
        if self.gone or self.answered:
            return
        self._heard = self._service.loop.time()
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
            self._news.set()

    def reset(self, code: ErrorCode) -> None:
        """End both directions so that neither side can take what it has for a whole message."""
        self._carrier.h3.abort(self.stream_id, code)
        self.lose()
        self._carrier.wake()

    def refuse(self, error: ApiError) -> None:
        """Answer in the application's place; where it has begun to answer, cut."""
        if self._started:
            self.reset(ErrorCode.H3_INTERNAL_ERROR)
            return
        date, identity = self._service.date(), self._ingress.request_id
        write_error(self._carrier.h3, self.stream_id, error, date, bodyless=self._bodyless, request_id=identity)
        self.lose()
        self._carrier.wake()

    def lose(self) -> None:
        """Nobody reads the answer any more: `receive` says so, `send` raises, and in the end the task is cancelled."""
        if self.gone or self.answered:
            return
        self.gone = True
        self._drop_body()
        self._unblock()
        self._ingress.leave()
        if self._task is not None:
            self._grace = self._service.loop.call_later(self._service.limits.cancel_grace_s, self._task.cancel)

    def flushed(self) -> None:
        if self._carrier.quic.unsent(self.stream_id) <= self._low_water:
            self._unblock()

    def sweep(self, now: float) -> None:
        limits = self._service.limits
        if self.gone or self.answered:
            return
        if self._reading and not self.complete and now - self._heard > limits.stalled_read_s:
            message = f"No byte of the request body arrived for {limits.stalled_read_s:g} s; send it again."
            self.refuse(ApiError(408, message, "request_timeout"))
        elif self._writer is not None:
            unsent = self._carrier.quic.unsent(self.stream_id)
            if unsent < self._blocked_unsent:
                self._blocked_unsent, self._blocked_since = unsent, now
            elif now - self._blocked_since > limits.stalled_write_s:
                self.reset(ErrorCode.H3_REQUEST_CANCELLED)

    @property
    def _high_water(self) -> int:
        limits = self._service.limits
        return min(limits.unsent_bytes, limits.unsent_connection_bytes // max(1, len(self._carrier.requests)))

    @property
    def _low_water(self) -> int:
        return self._high_water // 4

    def _drop_body(self) -> None:
        self._body.clear()
        self._carrier.quic.forget(self.stream_id)
        self._news.set()

    def _unblock(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    # ---- the application's side

    async def _run(self) -> None:
        failure: BaseException | None = None
        try:
            if not self.gone:
                await self._service.app(self.scope, self.receive, self.send)
        except Exception as error:
            failure = error
        finally:
            assert self._task is not None
            self._service.tasks.discard(self._task)
            self._returned(failure)

    def _returned(self, failure: BaseException | None) -> None:
        if failure is not None and not (self.gone and isinstance(failure, OSError)):
            _log.error("the application failed on %s", self.scope["path"], exc_info=failure)
        elif failure is None and not self.answered and not self.gone:
            _log.error("the application returned without a whole response on %s", self.scope["path"])
        if not self.answered and not self.gone:
            self.refuse(ApiError(500, "The server failed on this request; it is safe to try again.", "internal_error"))
        if self._grace is not None:
            self._grace.cancel()
        self._carrier.finished(self)

    async def receive(self) -> Message:
        """The next of `http.request` (all that has arrived) and `http.disconnect`."""
        if self._expects_continue and not (self._started or self._body or self.complete or self.gone):
            self._carrier.h3.write_head(self.stream_id, [(b":status", b"100")])
            self._carrier.wake()
        self._expects_continue = False
        while not (self._body or self.gone or self.answered or (self.complete and not self._delivered)):
            self._news.clear()
            self._reading = True
            try:
                await self._news.wait()
            finally:
                self._reading = False
        if self.gone or self.answered:
            return {"type": "http.disconnect"}
        body = b"".join(self._body)
        self._body.clear()
        if body and self._carrier.quic.release(self.stream_id, len(body)):
            self._carrier.wake()
        self._delivered = self.complete
        return {"type": "http.request", "body": body, "more_body": not self.complete}

    async def send(self, message: Message) -> None:
        """Raises ClientGone (an OSError) once nobody reads; waits while the client does not take what it is sent.

        The start is held until the first body message, and written together with it.
        """
        if self.gone:
            raise ClientGone("the client has left; stop producing this response")
        kind = message["type"]
        if kind == "http.response.body" and self._fields is not None and not self.answered:
            await self._send_body(message.get("body", b""), end=not message.get("more_body", False))
        elif kind == "http.response.start" and self._fields is None:
            status = message["status"]
            self._fields, self._left = response_fields(status, message.get("headers", ()), self._service.date())
            self._bodyless = self._bodyless or status in (204, 304)
        else:
            raise RuntimeError(f"ASGI message {kind!r} is out of order in this response")

    async def _send_body(self, data: bytes, end: bool) -> None:
        if self._bodyless:
            data = b""
        elif self._left is not None:
            self._left -= len(data)
            if self._left < 0 or (self._left and end):
                raise ValueError(f"response body is {abs(self._left)} bytes off its content-length header")
        limit = self._high_water
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
            assert self._fields is not None
            self._started = True
            h3.write_head(self.stream_id, self._fields, data, end)
        elif data or end:
            h3.write_data(self.stream_id, data, end)
        if end:
            self.answered = True
            if not self.complete:
                h3.ignore(self.stream_id, ErrorCode.H3_NO_ERROR)
            self._drop_body()
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
        if self.gone:
            raise ClientGone("the client left while the response waited for it to read")


def write_error(
    h3: H3, stream_id: int, error: ApiError, date: bytes, *, bodyless: bool = False, request_id: bytes | None = None
) -> None:
    """A complete answer of the wire itself; what is still to come of the request is not wanted."""
    headers, body = wire_error(error, request_id)
    fields, _ = response_fields(error.status, headers, date)
    h3.write_head(stream_id, fields, b"" if bodyless else body, end=True)
    h3.ignore(stream_id, ErrorCode.H3_NO_ERROR)
