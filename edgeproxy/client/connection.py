"""One HTTP/3 connection from the client's side: requests as streams over one UDP socket."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from math import inf
from typing import Any, cast

from aioquic.h3.connection import ErrorCode
from aioquic.h3.events import DataReceived, H3Event, Headers, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import HandshakeCompleted, PingAcknowledged, QuicEvent, StopSendingReceived, StreamReset

from edgeproxy.client.aioquic_internals import H3, MessageRefused, Quic

HEAD_BYTES = 64 * 1024
FIELDS = 256
UNSENT_BYTES = 256 * 1024
QUIET_S = 15.0
"""A connection that has heard nothing for so long may be cut off without knowing it."""
ASK_S = 5.0
"""While requests wait on it, it is asked for a sign of life after so long: a server that was killed and started again
can say so only then."""
LOST_S = 6.0
"""Nothing heard for so long while something waits for an acknowledgement: the peer is out of reach."""
_TIMER_SLACK_S = 0.001


class StreamFailed(Exception):
    """The peer, or the end of the connection, cut an exchange."""

    def __init__(self, message: str, code: int | None = None, *, unseen: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.rejected = unseen or code == ErrorCode.H3_REQUEST_REJECTED
        """The server has not looked at the request: it is safe to send it again (RFC 9114 section 4.1.1)."""


class Exchange:
    """One request and its response. Calls that wait raise StreamFailed."""

    def __init__(self, connection: Connection, stream_id: int) -> None:
        self.stopped = False
        """The server wants no more of the request's body."""
        self._connection = connection
        self._stream_id = stream_id
        self._head: tuple[int, Headers] | None = None
        self._chunks: deque[bytes] = deque()
        self._ended = False
        self._failure: StreamFailed | None = None
        self._news = asyncio.Event()

    async def write(self, data: bytes) -> None:
        """Send body octets, at the speed at which they leave."""
        connection = self._connection
        connection.h3.write_data(self._stream_id, data)
        connection.transmit_soon()
        connection.writing.add(self)
        try:
            while connection.quic.unsent(self._stream_id) > UNSENT_BYTES and not (self.stopped or self._failure):
                await self._wait()
        finally:
            connection.writing.discard(self)

    def end(self) -> None:
        """The request's body is complete."""
        self._connection.h3.write_data(self._stream_id, b"", end=True)
        self._connection.transmit_soon()

    async def head(self) -> tuple[int, Headers]:
        while self._head is None:
            self._raise()
            await self._wait()
        return self._head

    async def read(self) -> bytes:
        """The next octets of the response; empty at its end."""
        while not (self._chunks or self._ended):
            self._raise()
            await self._wait()
        if not self._chunks:
            return b""
        data = self._chunks.popleft()
        if self._connection.quic.release(self._stream_id, len(data)):
            self._connection.transmit_soon()
        return data

    def close(self) -> None:
        """The caller wants no more of it; an unfinished response is cancelled at the server."""
        connection = self._connection
        if connection.exchanges.pop(self._stream_id, None) is None:
            return
        connection.quic.forget(self._stream_id)
        if not self._ended:
            connection.h3.abort(self._stream_id, ErrorCode.H3_REQUEST_CANCELLED)
        connection.transmit_soon()
        connection.released()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    # ---- the connection's side

    def wake(self) -> None:
        self._news.set()

    def fail(self, failure: StreamFailed) -> None:
        if not self._ended:
            self._failure = failure
        self._news.set()

    def message(self, message: HeadersReceived | DataReceived) -> None:
        if isinstance(message, DataReceived):
            if message.data:
                self._chunks.append(message.data)
                self._connection.quic.hold(self._stream_id, len(message.data))
        elif self._head is None:
            status = int(dict(message.headers)[b":status"])
            if status >= 200:
                self._head = status, [field for field in message.headers if field[0] != b":status"]
        self._ended = message.stream_ended
        self._news.set()


class Connection(asyncio.DatagramProtocol):
    """Made by `connect`; takes requests while `usable`."""

    def __init__(self, configuration: QuicConfiguration, address: tuple[Any, ...]) -> None:
        self.quic = Quic(configuration)
        self.exchanges: dict[int, Exchange] = {}
        self.writing: set[Exchange] = set()
        """Exchanges whose `write` waits; woken after every flush."""
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._h3: H3 | None = None
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transmitting = False
        self._retired = False
        self._heard = time.monotonic()
        self._asked: float | None = None
        """When the first of what the peer has to acknowledge was sent; a probe that repeats it changes nothing."""
        self._unheard = False
        """Nobody listens there any more."""
        self._ping: asyncio.Future[bool] | None = None

    @classmethod
    async def connect(cls, configuration: QuicConfiguration, address: tuple[Any, ...]) -> Connection:
        """Raises OSError where the server is not there, speaks no h3, or is not who it should be."""
        connection = cls(configuration, address)
        try:
            await connection._loop.create_datagram_endpoint(lambda: connection, remote_addr=address[:2])
            await connection.connected
        except BaseException:
            connection.connected.cancel()  # nobody will ask for what becomes of it
            connection.close()
            raise
        return connection

    @property
    def h3(self) -> H3:
        assert self._h3 is not None, "the handshake is not complete"
        return self._h3

    @property
    def usable(self) -> bool:
        return self._h3 is not None and not self._h3.going_away and not self.quic.ended

    @property
    def lost(self) -> bool:
        """It ended, and the peer has not said that it should, nor is there a new one in its place."""
        return self.quic.ended and self._h3 is not None and not (self._h3.going_away or self.quic.reset_by_peer)

    @property
    def quiet(self) -> bool:
        """Nothing has been heard for a while: `ping` before a request that must not be lost."""
        return time.monotonic() - self._heard > QUIET_S

    async def ping(self) -> bool:
        """A round trip; False where the connection ends instead."""
        if self._ping is None:
            self._ping = self._loop.create_future()
            self.quic.send_ping(0)
            self.transmit_soon()
        return await asyncio.shield(self._ping)

    def request(self, headers: Headers, end: bool) -> Exchange:
        stream_id = self.quic.get_next_available_stream_id()
        exchange = self.exchanges[stream_id] = Exchange(self, stream_id)
        self.h3.write_head(stream_id, headers, end=end)
        self.transmit_soon()
        return exchange

    def retire(self) -> None:
        """Close when the requests in progress have ended."""
        self._retired = True
        self.released()

    def released(self) -> None:
        if self._retired and not self.exchanges:
            self.close()

    def close(self, reason: str = "") -> None:
        if not self.quic.ended:
            self.quic.close(error_code=ErrorCode.H3_NO_ERROR, reason_phrase=reason)
        self._transmit()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.quic.connect(self._address, now=time.monotonic())
        self._transmit()

    def datagram_received(self, data: bytes | str, _: object) -> None:
        assert isinstance(data, bytes)
        now = time.monotonic()
        self.quic.receive_datagram(data, self._address, now=now)
        if self.quic.frames:
            self._heard = now
            self._asked = self._asked if self.quic.awaits_acknowledgement else None
        self._take_events()
        self.transmit_soon()

    def error_received(self, error: Exception) -> None:
        """Nobody listens there (any more): the socket is connected, so the kernel has matched the ICMP message."""
        if not self.connected.done():
            self.connected.set_exception(error)
        elif isinstance(error, ConnectionRefusedError):
            self._unheard = True
            self.close("nobody listens there any more")

    def transmit_soon(self) -> None:
        """Send at the end of this turn of the event loop."""
        if not self._transmitting:
            self._transmitting = True
            self._loop.call_soon(self._transmit)

    def _transmit(self) -> None:
        self._transmitting = False
        if self._transport is None:
            return
        now = time.monotonic()
        for data, _ in self.quic.datagrams_to_send(now=now):
            self._transport.sendto(data)
        if self._asked is None and self.quic.awaits_acknowledgement:
            self._asked = now
        for exchange in self.writing:
            exchange.wake()
        if self.quic.ended:
            self._end()
        elif (at := self.quic.get_timer()) is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(min(at, self._check_at()), self._fired)

    def _check_at(self) -> float:
        """When the peer's silence is to be looked at."""
        if self._asked is not None:
            return max(self._heard, self._asked) + LOST_S
        return self._heard + ASK_S if self.exchanges else inf

    def _fired(self) -> None:
        self._timer = None
        at, now = self.quic.get_timer(), time.monotonic()
        if at is not None and at <= now + _TIMER_SLACK_S:
            self.quic.handle_timer(max(at, now))
            self._take_events()
        if self.usable and now >= self._check_at() - _TIMER_SLACK_S:
            self._silent()
        self._transmit()

    def _silent(self) -> None:
        if self._asked is not None:
            self.quic.close(error_code=ErrorCode.H3_NO_ERROR, reason_phrase=f"nothing heard for {LOST_S:g} s")
        else:
            self.quic.send_ping(0)

    def _end(self) -> None:
        reason = f"HTTP/3 connection closed: {self.quic.end_reason}"
        if not self.connected.done():
            self.connected.set_exception(ConnectionError(reason))
        self._pinged(False)
        for stream_id, exchange in self.exchanges.items():
            exchange.fail(StreamFailed(reason, unseen=self._unseen(stream_id)))
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _unseen(self, stream_id: int) -> bool:
        """Nobody has looked at the request: who answers that it knows nothing of the connection, or the host in its
        place, answers what was sent; of that nothing was sent twice, so that the one before has not got it either."""
        unknown = self.quic.reset_by_peer or self._unheard
        return unknown and not self.quic.probed and self.quic.untouched(stream_id)

    # ---- events

    def _pinged(self, alive: bool) -> None:
        if self._ping is not None:
            self._ping.set_result(alive)
            self._ping = None

    def _take_events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            self._event(event)

    def _event(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            self._h3 = H3(self.quic, head_bytes=HEAD_BYTES, fields=FIELDS)
            if not self.connected.done():
                self.connected.set_result(None)
        elif isinstance(event, PingAcknowledged):
            self._pinged(True)
        elif self._h3 is not None:
            for message in self._h3.handle_event(event):
                self._message(message)
            if isinstance(event, StreamReset | StopSendingReceived):
                self._cut(event)

    def _message(self, message: H3Event) -> None:
        if isinstance(message, HeadersReceived | DataReceived):
            exchange = self.exchanges.get(message.stream_id)
            if exchange is not None:
                exchange.message(message)
        elif isinstance(message, MessageRefused):
            self.h3.abort(message.stream_id, ErrorCode.H3_MESSAGE_ERROR)
            exchange = self.exchanges.get(message.stream_id)
            if exchange is not None:
                exchange.fail(StreamFailed(f"malformed response: {message.reason}", ErrorCode.H3_MESSAGE_ERROR))

    def _cut(self, event: StreamReset | StopSendingReceived) -> None:
        exchange = self.exchanges.get(event.stream_id)
        if exchange is None:
            return
        if isinstance(event, StopSendingReceived):
            exchange.stopped = True
            exchange.wake()
        else:
            exchange.fail(StreamFailed(f"the server reset the stream (0x{event.error_code:x})", event.error_code))
