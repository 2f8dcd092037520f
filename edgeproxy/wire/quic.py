"""QUIC connections behind one UDP socket: who gets in, which datagram is whose, and when each connection sends."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from edgeproxy.client.aioquic_internals import refusal_datagram
from edgeproxy.client.any_quic import Address, AnyQuic
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.quic_connection import Connection, Home
from edgeproxy.wire.quic_errors import error_name, handshake_failure
from edgeproxy.wire.quic_servers import QuicServer
from edgeproxy.wire.quota import Quota
from edgeproxy.wire.resets import Resets
from edgeproxy.wire.tickets import Tickets
from edgeproxy.wire.turns import Turns

_log = logging.getLogger(__name__)

_UNPROVEN_SHARE = 4
"""One in so many of the handshakes in progress may be of clients that have not proved their address."""
_INTERNAL_ERROR = 0x102
"""H3_INTERNAL_ERROR (RFC 9114 section 8.1)."""


class Endpoint(asyncio.DatagramProtocol):
    """All connections of one socket. What goes wrong in one of them ends that one and no other."""

    def __init__(
        self,
        server: QuicServer,
        limits: Limits,
        make: Callable[[AnyQuic, Home, str, float], Connection],
        tickets: Tickets,
        resets: Resets | None = None,
        counts: QuicCounts | None = None,
    ) -> None:
        """`server` may be replaced at any time; it counts for the connections made from then on.
        `resets`: None where datagrams of others' connections may come our way."""
        self.loop = asyncio.get_running_loop()
        self.server = server
        self.connections: dict[Connection, None] = {}
        self.open: dict[Connection, None] = {}
        """Those of `connections` that are not closing yet."""
        self.refusing = False
        """Turn new connections away; those that exist go on."""
        self.pass_on: Callable[[bytes, Address], bool] = lambda data, address: False
        """While we refuse: gives what is for no connection of ours to who takes them; False where nobody does."""
        self.limits = limits
        self._make = make
        self._tickets = tickets
        self._resets = resets
        self.counts = QuicCounts() if counts is None else counts
        self._handshaking: dict[Connection, None] = {}
        self._routes: dict[bytes, Connection] = {}
        self._quota = Quota(limits)
        self._releases: dict[Connection, Callable[[], None]] = {}
        self._dirty: dict[Connection, None] = {}
        self._retry = QuicRetryTokenHandler()
        self._transport: asyncio.DatagramTransport | None = None
        self._paused = False
        self._emptied = asyncio.Event()
        self._handshakes = Turns(self.loop, limits.handshakes_per_turn, lambda: None, self._next_in_line)
        self._in_line: deque[tuple[bytes, Address]] = deque()
        """Datagrams of newcomers, and of handshakes in progress, that wait for their turn."""

    @property
    def address(self) -> Address:
        assert self._transport is not None
        return cast(Address, self._transport.get_extra_info("sockname"))

    @property
    def alive(self) -> bool:
        """The socket is open."""
        return self._transport is not None and not self._transport.is_closing()

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def datagram_received(self, data: bytes | str, address: Address) -> None:
        assert isinstance(data, bytes)
        if not data:
            return
        connection = self._routes.get(self._destination(data))
        if connection is not None and connection not in self._handshaking:
            self._deliver(connection, data, address, time.monotonic())
        elif connection is None and self._is_passed_on(data, address):
            return
        elif connection is None and not _may_open(data):
            self._reset(data, address)
        elif not self._handshakes.waiting:
            self._shake_hands(data, address)
        elif len(self._in_line) < self.limits.datagrams_waiting:
            self._in_line.append((data, address))

    def _destination(self, data: bytes) -> bytes:
        """The connection id that a datagram is for (RFC 8999 section 5)."""
        if data[0] & 0x80:
            return data[6 : 6 + data[5]] if len(data) > 5 else b""
        return data[1 : 1 + self.server.connection_id_length]

    def _is_passed_on(self, data: bytes, address: Address) -> bool:
        return self.refusing and self.pass_on(data, address)

    def _reset(self, data: bytes, address: Address) -> None:
        """It belongs to nothing that we know: its sender may have a connection of a process that was killed."""
        if self._resets is None or self._transport is None or self._paused:
            return
        answer = self._resets.answer(data, self.server.connection_id_length, time.monotonic())
        if answer is not None:
            self.counts.resets += 1
            self._transport.sendto(answer, address)

    def _deliver(self, connection: Connection, data: bytes, address: Address, now: float) -> None:
        self.guard(connection, connection.receive, data, address, now)
        if connection.quic.started:
            self.wake(connection)
        else:  # nothing in its first datagram could be decrypted: not worth a place
            self.remove(connection)

    # ---- handshakes: they are the most work, and all of them together have one share of the loop

    def _shake_hands(self, data: bytes, address: Address) -> None:
        self._handshakes.spend()
        now = time.monotonic()
        connection = self._routes.get(self._destination(data))
        try:
            if connection is None and not self._is_passed_on(data, address):
                connection = self._newcomer(data, address, now)
        except Exception:
            _log.exception("cannot take a datagram from %s", address[0])
            return
        if connection is not None:
            self._deliver(connection, data, address, now)

    def _next_in_line(self) -> None:
        while self._in_line and not self._handshakes.waiting:
            self._shake_hands(*self._in_line.popleft())

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
        for connection in [c for c in self._handshaking if now - c.born > self.limits.handshake_s]:
            self._shaken(connection, "timed_out")
            connection.quic.close(error_code=QuicErrorCode.NO_ERROR, reason_phrase="handshake took too long")
            self.wake(connection)
        for connection in list(self.connections):
            self.counts.lost += connection.quic.take_lost()
            self.guard(connection, connection.sweep, now)

    # ---- who gets in

    def handshaken(self, connection: Connection) -> None:
        self._shaken(connection, "completed")

    def _shaken(self, connection: Connection, outcome: str) -> None:
        if connection in self._handshaking:
            del self._handshaking[connection]
            self.counts.handshakes[outcome] += 1

    def migrated(self) -> None:
        self.counts.migrations += 1

    def _newcomer(self, data: bytes, address: Address, now: float) -> Connection | None:
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=self.server.connection_id_length)
        except ValueError:
            return None
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION or header.version is None:
            return None
        if header.version not in self.server.supported_versions:
            self.counts.handshakes["unknown_version"] += 1
            self._send(
                encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=list(self.server.supported_versions),
                ),
                address,
            )
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(header.destination_cid) < 8:  # section 7.2
            return None
        return self._admit(header, address, now)

    def _admit(self, header: QuicHeader, address: Address, now: float) -> Connection | None:
        limits, half_open = self.limits, len(self._handshaking)
        if self.refusing or half_open >= limits.half_open:
            self._refuse(header, address, "refused_draining" if self.refusing else "refused_half_open")
            return None
        original = self._redeem(header, address, now)
        if original is None and half_open >= limits.half_open // _UNPROVEN_SHARE:
            self._ask_again(header, address, now)
            return None
        release = self._quota.admit(address[0])
        if release is None:
            self._refuse(header, address, "refused_limit")
            return None
        quic = self.server.accept(
            streams=limits.streams_per_connection,
            reset_token=None if self._resets is None else self._resets.token,
            tickets=self._tickets,
            original_cid=original or header.destination_cid,
            retry_cid=header.destination_cid if original else None,
        )
        connection = self._make(quic, self, address[0], now)
        self.connections[connection] = self.open[connection] = self._handshaking[connection] = None
        self._releases[connection] = release
        self.route(header.destination_cid, connection)
        self.route(quic.host_cid, connection)
        return connection

    def _refuse(self, header: QuicHeader, address: Address, outcome: str) -> None:
        assert header.version is not None
        self.counts.handshakes[outcome] += 1
        code = QuicErrorCode.CONNECTION_REFUSED
        self._send(refusal_datagram(header.version, header.destination_cid, header.source_cid, code), address)

    def _ask_again(self, header: QuicHeader, address: Address, now: float) -> None:
        """Retry (RFC 9000 section 8.1.2): a round trip before any state, and proof of the address."""
        assert header.version is not None
        self.counts.retries += 1
        source_cid = os.urandom(self.server.connection_id_length)
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
        self._releases.pop(connection)()
        for cid in list(connection.ids):
            self.unroute(cid, connection)
        connection.dispose()

    def ended(self, connection: Connection) -> None:
        self.open.pop(connection, None)
        ending = connection.quic.ending
        self._shaken(connection, handshake_failure(ending))
        if ending is not None:
            self.counts.ended[ending.by, error_name(ending)] += 1
        self.counts.lost += connection.quic.take_lost()
        if not self.open:
            self._emptied.set()

    async def empty(self) -> None:
        """Return when no connection is open, but for those in their closing period."""
        while self.open:
            self._emptied.clear()
            await self._emptied.wait()

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


def _may_open(data: bytes) -> bool:
    """A datagram for no connection that we know is worth a look (RFC 9000 sections 6.1 and 14.1)."""
    return data[0] & 0x80 != 0 and len(data) >= SMALLEST_MAX_DATAGRAM_SIZE
