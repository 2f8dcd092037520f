"""QUIC connections behind one UDP socket: who gets in, which datagram is whose, and when each connection sends."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from aioquic.buffer import Buffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.events import ConnectionIdIssued, ConnectionIdRetired, ConnectionTerminated, QuicEvent
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from edgeproxy.client.aioquic_internals import Quic, refusal_datagram
from edgeproxy.wire.limits import MIB, Limits

_log = logging.getLogger(__name__)

Address = tuple[Any, ...]
SOCKET_BUFFER_BYTES = 4 * MIB
_INTERNAL_ERROR = 0x102
_TIMER_SLACK_S = 0.001


class Connection:
    """One QUIC connection: datagrams and a timer go in, datagrams come out; a subclass gives its events a meaning."""

    def __init__(self, quic: Quic, endpoint: Endpoint, host: str, now: float) -> None:
        self.quic = quic
        self.host = host
        self.born = now
        self.ids: set[bytes] = set()
        self._endpoint = endpoint
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._over = False

    def event(self, event: QuicEvent) -> None:
        """Something happened on the connection."""

    def flushed(self) -> None:
        """Datagrams have been sent: acknowledgements and credit that arrived before have had their effect."""

    def over(self) -> None:
        """Either side has closed the connection, or it timed out; called once."""

    def sweep(self, now: float) -> None:
        """Called about once a second."""

    def wake(self) -> None:
        """Send what there is to send at the end of this turn of the event loop."""
        self._endpoint.wake(self)

    # ---- the endpoint's side

    def receive(self, data: bytes, address: Address, now: float) -> None:
        self.quic.receive_datagram(data, address, now)
        self._take_events()

    def flush(self, now: float, send: Callable[[bytes, Address], None]) -> None:
        for data, address in self.quic.datagrams_to_send(now):
            send(data, address)
        if self.quic.ended and not self._over:
            self._over = True
            self.over()
        self.flushed()
        self._arm()

    def dispose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._over:
            self._over = True
            self.over()

    def _take_events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, ConnectionIdIssued):
                self._endpoint.route(event.connection_id, self)
            elif isinstance(event, ConnectionIdRetired):
                self._endpoint.unroute(event.connection_id, self)
            elif isinstance(event, ConnectionTerminated):
                self._endpoint.remove(self)
            else:
                self.event(event)

    def _arm(self) -> None:
        at = self.quic.get_timer()
        # A deadline that moved away is looked at when the old one fires: cheaper than a new timer for every datagram.
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._endpoint.loop.call_at(at, self._endpoint.guard, self, self._fired)

    def _fired(self) -> None:
        self._timer = None
        at, now = self.quic.get_timer(), time.monotonic()
        if at is not None and at <= now + _TIMER_SLACK_S:
            self.quic.handle_timer(max(at, now))
            self._take_events()
            self.wake()
        else:
            self._arm()


class Endpoint(asyncio.DatagramProtocol):
    """All connections of one socket. What goes wrong in one of them ends that one and no other."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        limits: Limits,
        make: Callable[[Quic, Endpoint, str, float], Connection],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.configuration = configuration
        self.connections: dict[Connection, None] = {}
        self.refusing = False
        """Turn new connections away; those that exist go on."""
        self._limits = limits
        self._make = make
        self._routes: dict[bytes, Connection] = {}
        self._hosts: Counter[str] = Counter()
        self._dirty: dict[Connection, None] = {}
        self._retry = QuicRetryTokenHandler()
        self._transport: asyncio.DatagramTransport | None = None
        self._paused = False
        self._emptied: asyncio.Future[None] | None = None

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes | str, address: Address) -> None:
        assert isinstance(data, bytes)
        if not data:
            return
        now = time.monotonic()
        if data[0] & 0x80:
            connection = self._long_header(data, address, now)
        else:  # RFC 9000 section 17.3: one byte, then the connection id
            connection = self._routes.get(data[1 : 1 + self.configuration.connection_id_length])
        if connection is not None:
            self.guard(connection, connection.receive, data, address, now)
            self.wake(connection)

    def error_received(self, error: Exception) -> None:
        _log.debug("UDP socket: %s", error)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._dirty:
            self.loop.call_soon(self._flush)

    # ---- one flush a turn

    def wake(self, connection: Connection) -> None:
        if not self._dirty and not self._paused:
            self.loop.call_soon(self._flush)
        self._dirty[connection] = None

    def _flush(self) -> None:
        if self._transport is None or self._paused:
            return
        dirty, self._dirty = self._dirty, {}
        now = time.monotonic()
        for connection in dirty:
            if connection in self.connections:
                self.guard(connection, connection.flush, now, self._transport.sendto)

    def guard(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        """Run one step of a connection; an exception closes that connection."""
        try:
            step(*args)
        except Exception:
            if connection not in self.connections:
                return
            _log.exception("QUIC connection with %s failed; closing it", connection.host)
            if connection.quic.ended:
                self.remove(connection)
            else:
                connection.quic.close(error_code=_INTERNAL_ERROR, reason_phrase="internal error")
                self.wake(connection)

    def sweep(self, now: float) -> None:
        for connection in list(self.connections):
            if not connection.quic.handshaken and now - connection.born > self._limits.handshake_s:
                connection.quic.close(error_code=QuicErrorCode.NO_ERROR, reason_phrase="handshake took too long")
                self.wake(connection)
            else:
                self.guard(connection, connection.sweep, now)

    # ---- who gets in

    @property
    def half_open(self) -> int:
        return sum(not connection.quic.handshaken for connection in self.connections)

    def _long_header(self, data: bytes, address: Address, now: float) -> Connection | None:
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=self.configuration.connection_id_length)
        except ValueError:
            return None
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION or header.version is None:
            return None
        connection = self._routes.get(header.destination_cid)
        if connection is not None:
            return connection
        if len(data) < SMALLEST_MAX_DATAGRAM_SIZE:  # RFC 9000 sections 6.1 and 14.1
            return None
        if header.version not in self.configuration.supported_versions:
            self._send(
                encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=self.configuration.supported_versions,
                ),
                address,
            )
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(header.destination_cid) < 8:  # section 7.2
            return None
        return self._admit(header, data, address, now)

    def _admit(self, header: QuicHeader, data: bytes, address: Address, now: float) -> Connection | None:
        limits, host, half_open = self._limits, _network(address[0]), self.half_open
        full = len(self.connections) >= limits.connections or self._hosts[host] >= limits.connections_per_address
        if self.refusing or full or half_open >= limits.half_open:
            self._refuse(header, address)
            return None
        original = self._redeem(header, address, now)
        if original is None and half_open >= limits.half_open // 2:
            self._ask_again(header, address, now)
            return None
        quic = Quic(
            self.configuration,
            streams=limits.streams_per_connection,
            original_destination_connection_id=original or header.destination_cid,
            retry_source_connection_id=header.destination_cid if original else None,
        )
        connection = self._make(quic, self, host, now)
        self.connections[connection] = None
        self._hosts[host] += 1
        self.route(header.destination_cid, connection)
        self.route(quic.host_cid, connection)
        self.guard(connection, connection.receive, data, address, now)
        self.wake(connection)
        if not quic.started:  # nothing in it could be decrypted: not worth a place
            self.remove(connection)
        return None

    def _refuse(self, header: QuicHeader, address: Address) -> None:
        assert header.version is not None
        code = QuicErrorCode.CONNECTION_REFUSED
        self._send(refusal_datagram(header.version, header.destination_cid, header.source_cid, code), address)

    def _ask_again(self, header: QuicHeader, address: Address, now: float) -> None:
        """Retry (RFC 9000 section 8.1.2): a round trip before any state, and proof of the address."""
        assert header.version is not None
        source_cid = os.urandom(self.configuration.connection_id_length)
        token = self._retry.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source_cid,
            now=now,
        )
        self._send(
            encode_quic_retry(
                version=header.version,
                source_cid=source_cid,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            ),
            address,
        )

    def _redeem(self, header: QuicHeader, address: Address, now: float) -> bytes | None:
        """The connection id that the client chose before our Retry; None without a token of ours."""
        if not header.token:
            return None
        try:
            return self._retry.validate_token(
                address=address, destination_cid=header.destination_cid, token=header.token, now=now
            )
        except ValueError:
            return None

    def _send(self, data: bytes, address: Address) -> None:
        if self._transport is not None and not self._paused:
            self._transport.sendto(data, address)

    # ---- who is where

    def route(self, cid: bytes, connection: Connection) -> None:
        self._routes[cid] = connection
        connection.ids.add(cid)

    def unroute(self, cid: bytes, connection: Connection) -> None:
        if self._routes.get(cid) is connection:
            del self._routes[cid]
        connection.ids.discard(cid)

    def remove(self, connection: Connection) -> None:
        if connection not in self.connections:
            return
        del self.connections[connection]
        self._hosts[connection.host] -= 1
        if not self._hosts[connection.host]:
            del self._hosts[connection.host]
        for cid in list(connection.ids):
            self.unroute(cid, connection)
        connection.dispose()
        if not self.connections and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def empty(self) -> None:
        """Return when the last connection is gone."""
        if self.connections:
            self._emptied = self._emptied or self.loop.create_future()
            await asyncio.shield(self._emptied)

    def close(self, code: int) -> None:
        """Close every connection and the socket, at once."""
        for connection in list(self.connections):
            connection.quic.close(error_code=code)
            self._dirty[connection] = None
        self._paused = False
        self._flush()
        for connection in list(self.connections):
            self.remove(connection)
        if self._transport is not None:
            self._transport.close()


def udp_socket(host: str, port: int) -> socket.socket:
    """A bound, non-blocking socket with room for bursts. Raises OSError where the address cannot be bound."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    granted = [sock.getsockopt(socket.SOL_SOCKET, option) // 2 for option in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    if min(granted) < SOCKET_BUFFER_BYTES:
        _log.info(
            "UDP socket: the kernel granted %d bytes to receive and %d to send of %d asked for; "
            "raise net.core.rmem_max and net.core.wmem_max to lose fewer datagrams in bursts",
            *granted,
            SOCKET_BUFFER_BYTES,
        )
    return sock


def _network(host: str) -> str:
    """What one client can be assumed to own: an IPv4 address, or an IPv6 /64."""
    host = host.partition("%")[0]
    if ":" not in host:
        return host
    return str(ipaddress.IPv6Network((host, 64), strict=False).network_address)
