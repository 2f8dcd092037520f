"""An HTTP/1.1 connection: reading ahead without losing sight of the client, answers in order, deadlines, drain."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.goodbye import hang_up
from edgeproxy.wire.h1_exchange import Exchange
from edgeproxy.wire.h1_memory import Headers, RequestHead
from edgeproxy.wire.h1_parser import RequestParser, StopReading
from edgeproxy.wire.h1_response import encode_error
from edgeproxy.wire.ingress import SCOPE_KEY, HeadNote, Ingress
from edgeproxy.wire.rtt import RoundTrip
from edgeproxy.wire.service import Service
from edgeproxy.wire.stall import BodyPace, StallWatch
from edgeproxy.wire.turns import Turns
from edgeproxy.wire.wire_error import too_slow

_PARSED_BYTES = 8192
"""At once: the parser calls back for each chunk in them, be it of one octet."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class H1Connection(asyncio.Protocol):
    """One request runs at a time; those pipelined behind it wait, parsed, in `_queue`.

    The socket is paused only for a body that the running application does not read: a paused socket hides that the
    client has left. Whoever pipelines more than the limits allow gets the answers so far, then a close.
    """

    def __init__(self, service: Service, lost: Callable[[], None]) -> None:
        self.write_paused = False
        self.write: Callable[[bytes], None]
        self._service = service
        self._limits = service.limits
        self._lost = lost
        self._parser = RequestParser(service.limits, self)
        self._transport: asyncio.Transport
        self._stall: StallWatch
        self._round_trip: RoundTrip
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        self._running: Exchange | None = None
        self._queue: deque[Exchange] = deque()
        self._head: RequestHead | None = None
        self._scope: dict[str, Any] = {}
        """What requests with that head have in common..."""
        self._note = HeadNote()
        """...and what the application makes of it."""
        self._incoming: Exchange | None = None
        """The exchange whose body is being read: the running one or the last of the queue."""
        self._fresh = True
        """No request has begun yet."""
        self._receiving = False
        """A request has begun and not ended."""
        self._stopped = False
        """No further request is read; what still comes is dropped."""
        self._refusal: ApiError | None = None
        """The answer to what could not be read, due after the answers before it."""
        self._dropped = 0
        self._lingering = False
        self._read_paused = False
        """The running application does not take the body."""
        self._unparsed = b""
        """What was read, and waits for the connection's next turn."""
        self._turns = Turns(service.loop, self._limits.frames_per_turn, self._rest, self._go_on)
        self._pace = BodyPace(self._limits.stalled_read_s, self._limits.body_bytes_per_s)
        self._read_at = 0.0
        self._first_byte = 0.0
        self._deadline = inf
        self._writable: asyncio.Future[None] | None = None

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it
        self.write = self._transport.write
        self._transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        self._stall = StallWatch(self._transport, self._limits.stalled_write_s)
        self._round_trip = RoundTrip(self._transport)
        self._service.connections.add(self)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._deadline = time.monotonic() + self._limits.first_byte_s

    def data_received(self, data: bytes) -> None:
        if self._stopped:
            self._drop(len(data))
            return
        self._read_at = time.monotonic()  # the loop's clock, but uvloop's own reading of it is whole milliseconds
        if not self._turns.waiting and (len(data) <= _PARSED_BYTES or self._parser.knows(data)):
            self._parse(data)
            return
        self._unparsed += data
        if not self._turns.waiting:
            self._parse_on()

    def eof_received(self) -> None:
        """The client closed, or half-closed, which cannot be told apart: it is taken as gone."""
        self._lose_all()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose_all()
        self.resume_writing()
        self._service.connections.discard(self)
        self._lost()

    def pause_writing(self) -> None:
        self.write_paused = True

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._advance()

    # ---- the parser's side

    def _parse_on(self) -> None:
        """What has been read, as far as this turn of the loop allows."""
        data, start = self._unparsed, 0
        self._unparsed = b""
        while start < len(data) and not self._turns.waiting:
            if self._stopped:
                self._drop(len(data) - start)
                return
            self._parse(data[start : start + _PARSED_BYTES])
            start += _PARSED_BYTES
        self._unparsed = data[start:]

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except StopReading:
            self._stop_reading(None)
        except ApiError as error:
            if not self._stopped:  # else: bytes after the last request, which nobody reads
                self._stop_reading(error)

    def request_began(self) -> None:
        self._receiving = True
        self._fresh = False
        self._first_byte = self._read_at
        self._deadline = self._read_at + self._limits.head_s

    def request_head(self, head: RequestHead, headers: Headers) -> None:
        self._incoming = self._enqueue(head, headers)
        self._pace.begin(self._read_at)
        self._advance()

    def request_body(self, data: bytes) -> None:
        exchange = self._incoming
        assert exchange is not None
        exchange.body_arrived(data)
        self._turns.spend()
        self._pace.arrived(len(data), self._read_at)
        if exchange.unread <= self._limits.unread_body_bytes:
            return
        if exchange is not self._running:
            raise StopReading
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()
        self._deadline = inf
        self._pace.end()

    def request_ended(self) -> None:
        exchange, self._incoming = self._incoming, None
        assert exchange is not None
        self._receiving = False
        self._deadline = inf
        self._pace.end()
        self._stopped = not exchange.keep_alive
        exchange.ended(self._read_at)
        self._resume_reading()

    def request_whole(self, head: RequestHead, headers: Headers, body: bytes) -> None:
        self._fresh = False
        self._first_byte = self._read_at
        self._enqueue(head, headers).arrived_whole(body, self._read_at)
        self._turns.spend()
        self._advance()

    # ---- the exchange's side

    async def writable(self) -> None:
        if self.write_paused:
            self._writable = self._service.loop.create_future()
            await self._writable

    def body_taken(self) -> None:
        if self._read_paused:
            self._resume_reading()
            self._pace.begin(time.monotonic())

    def is_last_request(self) -> bool:
        return (self._stopped or self._service.draining) and not self._queue and self._refusal is None

    def answered(self, *, close: bool) -> None:
        self._running = None
        if close:
            self._close()
        else:
            self._advance()

    def cut(self, *, reset: bool) -> None:
        self._lose_all()
        if reset:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.abort()
        else:
            self._transport.close()

    # ---- the listener's side

    def sweep(self, now: float) -> None:
        if self._stall.stalled(now):
            self.abort()
        elif now >= self._deadline or self._pace.too_slow(now):
            self._expire()

    def drain(self) -> None:
        if self._fresh:
            self._deadline = min(self._deadline, time.monotonic() + self._limits.late_request_s)
        elif not (self._running or self._queue or self._receiving):
            hang_up(self._transport)

    def abort(self) -> None:
        self._lose_all()
        self._transport.abort()

    def rtt(self) -> float | None:
        """Seconds, the kernel's smallest of late; None once the connection is lost."""
        return self._round_trip.at(time.monotonic()) if self in self._service.connections else None

    # ---- the connection's own

    def _enqueue(self, head: RequestHead, headers: Headers) -> Exchange:
        if len(self._queue) >= self._limits.pipeline_depth:
            self._receiving = True  # that client has more to say
            raise StopReading
        if head is not self._head:
            self._head, self._scope, self._note = head, self._scope_of(head), HeadNote()
        ingress = Ingress("h1", self._first_byte, self.rtt, self._note)
        scope = self._scope.copy()
        scope["headers"] = headers
        scope["state"] = self._service.state.copy()
        scope["extensions"] = {SCOPE_KEY: ingress}
        exchange = Exchange(self._service, self, ingress, scope, head)
        self._deadline = inf
        self._queue.append(exchange)
        return exchange

    def _advance(self) -> None:
        """Begin what is next, unless an answer runs or the client has still to take what was written."""
        if self._running is not None or self.write_paused or self._lingering or self._transport.is_closing():
            return
        if self._queue:
            self._running = self._queue.popleft()
            self._running.start()
        elif self._refusal is not None:
            self._transport.write(encode_error(self._service, self._refusal))
            self._close()
        elif self._stopped or (self._service.draining and not self._receiving):
            self._close()
        elif not self._receiving:
            self._deadline = time.monotonic() + self._limits.keep_alive_s

    def _stop_reading(self, refusal: ApiError | None) -> None:
        """Read no further; `refusal` answers the request being read, in its turn."""
        self._stopped = True
        self._deadline = inf
        self._pace.end()
        exchange, self._incoming = self._incoming, None
        if exchange is not None and exchange is self._running:
            assert refusal is not None
            exchange.refuse(refusal)
            return
        if exchange is not None:
            self._queue.remove(exchange)
        self._refusal = refusal
        self._advance()

    def _close(self) -> None:
        """Close behind what was written. Input left unread would turn that close into a reset, and lose the answer:
        so what the client still sends is dropped for a while first (RFC 9112 section 9.6)."""
        unread = self._receiving or self._dropped or self._queue
        self._lose_all()
        if not unread or self._transport.is_closing():
            self._transport.close()
            return
        self._lingering = True
        self._deadline = time.monotonic() + self._limits.linger_s
        self._resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > self._limits.linger_bytes:
            self.abort()

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            if not self._turns.waiting:
                self._transport.resume_reading()

    def _rest(self) -> None:
        if not (self._read_paused or self._transport.is_closing()):
            self._transport.pause_reading()

    def _go_on(self) -> None:
        self._parse_on()
        if not (self._turns.waiting or self._read_paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def _expire(self) -> None:
        self._deadline = inf
        if self._lingering:
            self.abort()
        elif self._receiving:
            self._stop_reading(too_slow())
        else:
            self._transport.close()

    def _lose_all(self) -> None:
        self._stopped = True
        self._deadline = inf
        self._pace.end()
        if self._running is not None:
            self._running.lose()
        for exchange in self._queue:
            exchange.lose()
        self._queue.clear()
        self._incoming = None

    def _scope_of(self, head: RequestHead) -> dict[str, Any]:
        raw_path = head.raw_path
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": head.version,
            "method": head.method,
            "scheme": self._service.scheme,
            "path": raw_path.decode() if b"%" not in raw_path else unquote_to_bytes(raw_path).decode(errors="replace"),
            "raw_path": raw_path,
            "query_string": head.query,
            "root_path": "",
            "client": self._client,
            "server": self._server,
        }


def _address(name: object) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
