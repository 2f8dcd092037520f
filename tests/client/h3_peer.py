"""A QUIC client under full control of the test: aioquic as it is, none of our own additions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from aioquic.buffer import encode_uint_var
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, H3Event, Headers, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import (
    ConnectionTerminated,
    HandshakeCompleted,
    PingAcknowledged,
    QuicEvent,
    StopSendingReceived,
    StreamReset,
)
from aioquic.quic.packet import QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch, SessionTicket

T = TypeVar("T")
PATIENCE_S = 20.0


def get(path: str = "/", method: str = "GET") -> Headers:
    return [
        (b":method", method.encode()),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", path.encode()),
    ]


def post(path: str = "/", *fields: tuple[bytes, bytes]) -> Headers:
    return [*get(path, "POST"), *fields]


def packet(quic: QuicConnection, frames: bytes) -> bytes:
    """A datagram of the connection with a PING and these frames, which the connection itself knows nothing of."""
    builder = QuicPacketBuilder(
        host_cid=quic.host_cid,
        is_client=True,
        max_datagram_size=len(frames) + 100,
        packet_number=quic._packet_number,
        peer_cid=quic._peer_cid.cid,
        version=quic._version or 1,
    )
    builder.start_packet(QuicPacketType.ONE_RTT, quic._cryptos[Epoch.ONE_RTT])
    builder.start_frame(QuicFrameType.PING).push_bytes(frames)
    (datagram,), _ = builder.flush()
    quic._packet_number = builder.packet_number
    return datagram


def stream_frame(stream_id: int, offset: int, data: bytes) -> bytes:
    return b"\x0e" + b"".join(map(encode_uint_var, (stream_id, offset, len(data)))) + data


@dataclass
class Reply:
    """What came back on one stream."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""
    ended: bool = False
    reset: int | None = None
    stopped: int | None = None

    @property
    def status(self) -> int | None:
        return int(self.headers[b":status"]) if self.headers else None


class Peer(asyncio.DatagramProtocol):
    def __init__(self, configuration: QuicConfiguration, address: tuple[str, int]) -> None:
        self.tickets: list[SessionTicket] = []
        self.quic = QuicConnection(configuration=configuration, session_ticket_handler=self.tickets.append)
        self.replies: dict[int, Reply] = {}
        self.closed: ConnectionTerminated | None = None
        self.refused = False
        """The socket says that nobody listens."""
        self.pongs: set[int] = set()
        self.resumed = False
        self.early_data_accepted = False
        self.retried = False
        """The server asked for proof of the address first."""
        self.deaf = False
        """Read nothing from the network any more."""
        self.lost: list[bytes] | None = None
        """What came from the network since the test set it to a list; `found()` hands it on."""
        self.h3: H3Connection | None = None
        self._address = address
        self._ready = False
        self._mute = False
        self._news = asyncio.Event()
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, port: int, ca: Path, *, host: str = "127.0.0.1", wait: bool = True, mute: bool = False, **options: Any
    ) -> Peer:
        """`options`: of QuicConfiguration. `mute`: speaks no HTTP/3 by itself. Raises ConnectionError where the
        connection is not taken."""
        options = {"alpn_protocols": ["h3"], "server_name": "localhost", **options}
        configuration = QuicConfiguration(is_client=True, **options)
        configuration.load_verify_locations(cafile=str(ca))
        peer = cls(configuration, (host, port))
        peer._mute = mute
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: peer, remote_addr=(host, port))
        if wait:
            await peer.until(lambda: peer._ready or peer.closed)
            if peer.closed:
                peer.close()
                raise ConnectionError(f"0x{peer.closed.error_code:x} {peer.closed.reason_phrase}")
        return peer

    # ---- what a test does

    def request(self, headers: Headers, body: bytes | None = None, *, end: bool = True) -> int:
        """Without `body`, `end` says whether the head ends the request."""
        assert self.h3
        stream_id = self.quic.get_next_available_stream_id()
        self.h3.send_headers(stream_id, headers, end_stream=end and body is None)
        if body is not None:
            self.h3.send_data(stream_id, body, end_stream=end)
        self.flush()
        return stream_id

    def speak_early(self) -> None:
        """Begin HTTP/3 before the handshake is over: what is asked then is early data."""
        self.h3 = H3Connection(self.quic)

    def data(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        assert self.h3
        self.h3.send_data(stream_id, data, end_stream=end)
        self.flush()

    def raw(self, stream_id: int, data: bytes, *, end: bool = False) -> None:
        """Octets on a stream, whatever they mean."""
        self.quic.send_stream_data(stream_id, data, end)
        self.flush()

    def frames(self, frames: bytes) -> None:
        """A datagram of these frames."""
        assert self._transport
        self._transport.sendto(packet(self.quic, frames))

    def reset(self, stream_id: int, code: int = 0x10C) -> None:
        self.quic.reset_stream(stream_id, code)
        self.flush()

    def stop(self, stream_id: int, code: int = 0x10C) -> None:
        self.quic.stop_stream(stream_id, code)
        self.flush()

    def cancel(self, stream_id: int) -> None:
        """As browsers and curl do it: both directions in one datagram."""
        self.quic.reset_stream(stream_id, 0x10C)
        self.stop(stream_id)

    def found(self) -> None:
        lost, self.lost = self.lost or [], None
        for data in lost:
            self.datagram_received(data, None)

    def close(self) -> None:
        self.quic.close(error_code=0x100)
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()

    async def reply(self, stream_id: int) -> Reply:
        """The reply when it has ended, one way or another."""
        reply = self.at(stream_id)
        await self.until(lambda: reply.ended or reply.reset is not None or self.closed is not None)
        return reply

    async def round_trip(self) -> None:
        """Return when the server has taken everything sent so far, or is gone."""
        uid = len(self.pongs) + 1
        self.quic.send_ping(uid)
        self.flush()
        await self.until(lambda: uid in self.pongs or self.closed is not None)

    async def closing(self) -> ConnectionTerminated:
        return await self.until(lambda: self.closed)

    async def until(self, found: Callable[[], T | bool | None]) -> T:
        async with asyncio.timeout(PATIENCE_S):
            while not (value := found()):
                self._news.clear()
                await self._news.wait()
        return cast("T", value)

    def at(self, stream_id: int) -> Reply:
        return self.replies.setdefault(stream_id, Reply())

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.quic.connect(self._address, now=time.monotonic())
        self.flush()

    def datagram_received(self, data: bytes | str, _: object) -> None:
        if self.deaf:
            return
        assert isinstance(data, bytes)
        if self.lost is not None:
            self.lost.append(data)
            return
        self.retried = self.retried or data[0] & 0xF0 == 0xF0  # RFC 9000 section 17.2.5
        self.quic.receive_datagram(data, self._address, now=time.monotonic())
        self._events()
        self.flush()

    def error_received(self, error: Exception) -> None:
        self.refused = True
        self._news.set()

    def flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        for data, _ in self.quic.datagrams_to_send(now=time.monotonic()):
            self._transport.sendto(data)
        if self._timer is not None:
            self._timer.cancel()
        at = self.quic.get_timer()
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._fired, at)

    def _fired(self, at: float) -> None:
        self.quic.handle_timer(max(at, time.monotonic()))
        self._events()
        self.flush()

    def _events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            self._event(event)
        self._news.set()

    def _event(self, event: QuicEvent) -> None:
        if isinstance(event, HandshakeCompleted):
            if not self._mute:
                self.h3 = self.h3 or H3Connection(self.quic)
            self._ready = True
            self.resumed, self.early_data_accepted = event.session_resumed, event.early_data_accepted
        elif isinstance(event, ConnectionTerminated):
            self.closed = event
        elif isinstance(event, StreamReset):
            self.at(event.stream_id).reset = event.error_code
        elif isinstance(event, StopSendingReceived):
            self.at(event.stream_id).stopped = event.error_code
        elif isinstance(event, PingAcknowledged):
            self.pongs.add(event.uid)
        if self.h3 is not None:
            for message in self.h3.handle_event(event):
                self._message(message)

    def _message(self, message: H3Event) -> None:
        if isinstance(message, HeadersReceived):
            reply = self.at(message.stream_id)
            reply.headers, reply.ended = dict(message.headers), message.stream_ended
        elif isinstance(message, DataReceived):
            reply = self.at(message.stream_id)
            reply.body, reply.ended = reply.body + message.data, message.stream_ended
