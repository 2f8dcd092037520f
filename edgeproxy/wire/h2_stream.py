"""One HTTP/2 request and its answer: `receive` and `send` of one application call."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from h2.errors import ErrorCodes

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.message_head import Headers, RequestHead, response_fields
from edgeproxy.wire.service import ClientGone, Message, Service
from edgeproxy.wire.wire_error import body_too_large, wire_error

_log = logging.getLogger(__name__)


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


class Stream:
    """`gone`: the application's answer is not wanted any more. `ended`: nothing more passes, in either direction."""

    def __init__(
        self, service: Service, carrier: Carrier, stream_id: int, head: RequestHead, ingress: Ingress, scope: Scope
    ) -> None:
        self.id = stream_id
        self.scope = scope
        self.complete = False
        """The request has arrived to its end."""
        self.answered = False
        """The whole response is written."""
        self.gone = False
        self.ended = False
        self._service = service
        self._limits = service.limits
        self._carrier = carrier
        self._ingress = ingress
        self._task: asyncio.Task[None] | None = None
        # the request's body
        self._body: list[bytes] = []
        self._total = 0
        self._unread = 0
        """Flow-controlled bytes not yet given back."""
        self._delivered = False
        self._expects_continue = head.expects_continue
        self._reader: asyncio.Future[None] | None = None
        self._heard = time.monotonic()
        # the response
        self._fields: Headers | None = None
        self._started = False
        self._left: int | None = None
        self._bodyless = head.method == "HEAD"
        self._writer: asyncio.Future[None] | None = None
        self._wrote = 0.0
        self._answered_at = 0.0
        self._dropped = 0

    @property
    def over(self) -> bool:
        return self.ended and (self._task is None or self._task.done())

    # ---- the connection's side

    def start(self) -> None:
        self._task = self._ingress.task = self._service.loop.create_task(self._run())
        self._service.tasks.add(self._task)
        self._task.add_done_callback(self._finished)

    def arrived(self, data: bytes, flow_controlled: int) -> None:
        if self.gone or self.answered:
            self._drop(flow_controlled)
            return
        self._heard = time.monotonic()
        self._total += len(data)
        self._unread += flow_controlled
        if self._total > self._limits.body_bytes:
            self.refuse(body_too_large(self._limits.body_bytes))
            return
        self._expects_continue = False
        self._body.append(data)
        self._wake_reader()

    def finished(self) -> None:
        """The request has ended."""
        self.complete = True
        if self.answered:
            self._carrier.nudge()
            self._end()
        self._wake_reader()

    def lose(self) -> None:
        """The client, or the connection, has ended the stream."""
        self._give_up()
        self._end()

    def refuse(self, error: ApiError) -> None:
        """Answer in the application's place; where it has begun to answer, cut."""
        self._give_up()
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
        elif self._reader is not None and not self.complete and now - self._heard >= limits.stalled_read_s:
            self.refuse(ApiError(408, "The request did not arrive in time; send it again.", "request_timeout"))

    def _give_up(self) -> None:
        if self.gone or self.answered:
            return
        self.gone = True
        self._body.clear()
        self._drop(self._unread)
        self._unread = 0
        self._wake_reader()
        self.writable()
        self._ingress.leave()
        if self._task is not None and not self._task.done():
            self._service.loop.call_later(self._limits.cancel_grace_s, self._task.cancel)

    def _drop(self, size: int) -> None:
        if size and not self.ended:
            self._carrier.taken(self.id, size)
            self._dropped += size
            if self._dropped > self._limits.linger_bytes:
                self._reset(ErrorCodes.NO_ERROR)

    def _reset(self, code: ErrorCodes) -> None:
        self._give_up()
        if not self.ended:
            self._carrier.reset(self.id, code)
            self._end()

    def _end(self) -> None:
        self.ended = True
        self._carrier.settled(self)

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # ---- the application's side

    async def _run(self) -> None:
        if self.gone:  # reset in the same read that brought it
            return
        failure: Exception | None = None
        try:
            await self._service.app(self.scope, self.receive, self.send)
        except Exception as error:
            failure = error
        if failure is not None and not (self.gone and isinstance(failure, OSError)):
            _log.error("the application failed on %r", self.scope["path"], exc_info=failure)
        elif failure is None and not self.answered and not self.gone:
            _log.error("the application returned without a whole response on %r", self.scope["path"])
        if not self.answered and not self.gone:
            self.refuse(ApiError(500, "The server failed on this request; it is safe to try again.", "internal_error"))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._service.tasks.discard(task)
        self._carrier.settled(self)

    async def receive(self) -> Message:
        """The next of `http.request` (all that has arrived) and `http.disconnect`. One caller at a time."""
        if self._expects_continue and not (self._started or self.complete or self.gone):
            self._carrier.write_head(self.id, [(b":status", b"100")], end=False)
        self._expects_continue = False
        while not (self._body or self.gone or self.answered or (self.complete and not self._delivered)):
            self._reader = self._service.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self.gone or self.answered:
            return {"type": "http.disconnect"}
        body = b"".join(self._body)
        self._body.clear()
        if self._unread:
            self._carrier.taken(self.id, self._unread)
            self._unread = 0
        self._heard = time.monotonic()
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
            fields, self._left = response_fields(status, message.get("headers", ()), self._service.date())
            if (alt_svc := self._service.alt_svc()) is not None:
                fields.append((b"alt-svc", alt_svc))
            self._fields = fields
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
        self._wrote = time.monotonic()
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
        if not self.answered and (end or not self._started):
            self._write(b"", end)

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

    def _check_gone(self) -> None:
        if self.gone:
            raise ClientGone("the client left while the response waited for it to read")

    def _write(self, data: bytes, end: bool) -> None:
        assert self._fields is not None
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
