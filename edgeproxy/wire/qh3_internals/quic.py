"""A connection as `AnyQuic` wants it: bounded, counted, and with the events that HTTP/3 knows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal

from aioquic.quic import events
from qh3.quic import events as native_events
from qh3.quic.configuration import QuicConfiguration

from edgeproxy.client.any_quic import Address, Ending
from edgeproxy.wire.qh3_internals.handshake import Beginning

FREE_EVENTS: Final = 8
"""Of one datagram that bring nothing are taken for granted: the ends of streams, credit, ids."""
USEFUL_BYTES: Final = 64
"""Pieces of streams of fewer octets on average are taken for ones that bring nothing: they cost as much as long
ones."""
SMALL_DATAGRAM: Final = 64
"""What is shorter holds no more than an acknowledgement, or the answer to a challenge of a path."""
AMPLIFICATION: Final = 3
"""Octets sent for one received before the address is proved (RFC 9000 section 8.1)."""
FREE_S: Final = 300e-6
"""Of CPU for what a datagram brings; it takes 5 to 60 us."""
SEND_S: Final = 50e-6
"""Of CPU for a datagram that is sent; it takes 3 to 10 us."""
FRAME_S: Final = 10e-6
"""Of CPU beyond these count as a frame that brings nothing."""
MOVES: Final = 3
"""New addresses of a peer that the core looks at in a connection's life; then it answers to the last one alone."""
_INTERNAL_ERROR: Final = 1
_NO_ROOM: Final = "packet builder capacity exhausted"


class Quic(Beginning):
    """The server's side of a connection, as `AnyQuic` wants it."""

    _events: deque[Any]
    """The library's own from its TLS, aioquic's from the core."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        streams: int,
        reset_token: Callable[[bytes], bytes] | None = None,
        cpu: Callable[[], float] = time.thread_time,
        **roles: Any,
    ) -> None:
        """`streams`: requests the peer may have open at once. `reset_token`: what it is given with the first connection
        id, of 16 octets; those of later ones nobody else can know. `cpu`: seconds that
        this thread has worked. `roles`: keywords of the library's connection.

        Half of `configuration.max_data` may wait for readers, and as much again in the core."""
        super().__init__(configuration, streams=streams, reset_token=reset_token, **roles)
        self.frames = 0
        """Events that were taken between the last datagram and the one before: they are seen only then."""
        self.idle_frames = 0.0
        self._unread: dict[int, int] = {}
        self._unread_total = 0
        self._most_unread = configuration.max_data // 2
        self._cpu = cpu
        self._taken = 0
        self._idle = 0.0
        self._stops: dict[int, int] = {}
        """Streams on which STOP_SENDING is to be sent, and its code."""
        self._arrived: set[int] = set()
        """Streams that are not over yet, and whose end or reset has come."""
        self._leaving: set[int] = set()
        """Streams that are not over yet, and on which something was sent."""
        self._rtt: float | None = None
        self._lost = 0
        self._received = self._sent = 0
        self._proved = self._retry_source_connection_id is not None
        self._peer: Address | None = None
        self._former: Address | None = None
        """Where it was before."""
        self._moves = 0
        self._by: Literal["us", "peer", "silence"] = "us"

    def _drain_core(self) -> None:
        """What the library calls while it shakes hands: everything that its TLS waits for is taken at once."""
        while (event := self._take()) is not None:
            self._events.append(event)

    # ---- datagrams and time

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None:
        self.frames, self.idle_frames = self._taken, max(0.0, self._idle - FREE_EVENTS)
        self._taken, self._idle = 0, 0.0
        before = self._cpu()
        if self._handshake_complete:
            core = self._require_core()
            self._native(core.receive_datagram, data, self._normalize_address(addr) if len(addr) > 2 else addr, now)
        else:
            self._received += len(data)
            self._peer = self._peer or addr
            self._native(super().receive_datagram, data, addr, now)
            self._proved = self._proved or self._handshake_complete
            return  # signatures are dear, and have a share of the loop of their own
        self._charge(before, FREE_S)

    def _charge(self, before: float, free_s: float) -> None:
        """Some frames cost the core out of all proportion: ids that retire others 10 ms a datagram."""
        spent = self._cpu() - before - free_s
        if spent > 0:
            self._idle += FREE_EVENTS + spent / FRAME_S

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        before = self._cpu()
        found = self._polled(now)
        if self._stops and not self.ended and self._stop():
            found += self._polled(now)
        if len(found) > FREE_EVENTS:
            small = sum(len(data) < SMALL_DATAGRAM for data, _ in found)
            self._idle += max(0, small - FREE_EVENTS)
        self._charge(before, FREE_S + len(found) * SEND_S)
        return found

    def _polled(self, now: float) -> list[tuple[bytes, Any]]:
        core, found = self._core, list[tuple[bytes, Any]]()
        while core is not None and (self._proved or self._may_send()):
            try:
                transmit = self._native(core.poll_transmit, now)
            except RuntimeError as error:
                if _NO_ROOM not in str(error):
                    raise
                break  # the peer's new address is not proved, and what may be sent there is used up for now
            if transmit is None:
                break
            found.append((transmit[0], transmit[1]))
            if transmit[1] == self._former:
                # It asks whether the peer is still there (RFC 9000 section 9.3.3), and the core fills it up with data.
                found.append((transmit[0], self._peer))
            self._sent += len(transmit[0])
        return found

    def _may_send(self) -> bool:
        return self._sent + self._configuration.max_datagram_size <= AMPLIFICATION * self._received

    def get_timer(self) -> float | None:
        timer = None if self._core is None else self._core.get_timer()
        return None if timer is None else float(timer[1])

    def handle_timer(self, now: float) -> None:
        if self._core is not None:
            self._native(self._core.handle_timer, now)

    def _native(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """A panic of Rust is no Exception for Python: it would pass everything that contains errors."""
        try:
            return call(*arguments)
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            self._close_event = native_events.ConnectionTerminated(_INTERNAL_ERROR, 0, "internal error")
            self._core = None
            raise RuntimeError(f"qh3 failed: {error}") from error

    # ---- events

    def next_event(self) -> events.QuicEvent | None:  # type: ignore[override]
        return _of_tls(self._events.popleft()) if self._events else self._take()

    def _take(self) -> events.QuicEvent | None:
        core = self._core
        while core is not None and (self._unread_total < self._most_unread or core.state != "connected"):
            found = self._native(core.next_event)
            if found is None:
                break
            self._taken += 1
            event = self._event(*found)
            if event is not None:
                return event
        return None

    def _event(self, kind: str, *fields: Any) -> events.QuicEvent | None:
        if kind == "stream_data":
            stream_id, data, end = fields
            if end:
                self._arrived.add(stream_id)
            self._idle += max(1 - len(data) / USEFUL_BYTES, -4.0)
            return events.StreamDataReceived(data, end, stream_id)
        if kind == "stream_finished":
            self._stops.pop(fields[0], None)
            self._arrived.discard(fields[0])
            self._leaving.discard(fields[0])
            self._created_local_stream_ids.discard(fields[0])
        elif kind == "stream_reset":
            self._arrived.add(fields[0])
            return events.StreamReset(fields[1], fields[0])
        elif kind == "stop_sending":
            return events.StopSendingReceived(fields[1], fields[0])
        elif kind == "ping_acknowledged":
            return events.PingAcknowledged(fields[0])
        elif kind == "crypto_data":
            self._shake_hands(*fields)
        else:
            self._idle += 1
            return self._rare_event(kind, *fields)
        return None

    def _rare_event(self, kind: str, *fields: Any) -> events.QuicEvent | None:
        if kind == "connection_id_issued":
            return events.ConnectionIdIssued(fields[0])
        if kind == "connection_id_retired":
            return events.ConnectionIdRetired(fields[0])
        if kind == "peer_closed":
            self._by = "peer"
            self._over(fields[1], fields[2], fields[3].decode("utf8", "replace"))
        elif kind == "peer_migration":
            self._moves += 1
        elif kind == "path_validated" and self._core is not None and self._core.active_path[2] != self._peer:
            self._former, self._peer = self._peer, self._core.active_path[2]
        elif kind == "protocol_error":
            self._over(*fields[:3])
        elif kind == "connection_terminated":
            code, frame_type, reason = fields[0], fields[1], fields[2].decode("utf8", "replace")
            if self._close_event is None:
                self._by = "silence"
                self._over(code, frame_type, reason)
            return events.ConnectionTerminated(code, frame_type, reason)
        return None

    def _over(self, code: int, frame_type: int | None, reason: str) -> None:
        if self._close_event is None:
            self._close_event = native_events.ConnectionTerminated(code, frame_type, reason)

    # ---- what is received

    def hold(self, stream_id: int, size: int) -> None:
        self._unread[stream_id] = self._unread.get(stream_id, 0) + size
        self._unread_total += size

    def release(self, stream_id: int, size: int) -> bool:
        before = self._unread_total
        self._unread[stream_id] -= size
        self._unread_total -= size
        return before >= self._most_unread > self._unread_total

    def forget(self, stream_id: int) -> None:
        self._unread_total -= self._unread.pop(stream_id, 0)

    def stop_receiving(self, stream_id: int, code: int) -> None:
        if stream_id not in self._arrived:
            self._stops[stream_id] = code

    def _stop(self) -> bool:
        """STOP_SENDING where it is due. The core forgets what a stream has to send when it sends this: so it waits."""
        assert self._core is not None
        due = [stream_id for stream_id in self._stops if not self.unsent(stream_id)]
        for stream_id in due:
            code = self._stops.pop(stream_id)
            if stream_id not in self._arrived:
                with suppress(ValueError):  # the stream is over
                    self._native(self._core.stop_sending, stream_id, code)
        return bool(due)

    # ---- what is sent

    def send_stream_data(  # type: ignore[override]
        self, stream_id: int, data: bytes, end_stream: bool = False
    ) -> None:
        if self.ended or not (data or end_stream):  # the core would make a frame of nothing
            return
        if not stream_id & 1:
            self._leaving.add(stream_id)
        if self._handshake_complete and not stream_id & 1:
            self._native(self._require_core().send_stream, stream_id, data, end_stream)
        else:
            super().send_stream_data(stream_id, data, end_stream)

    def stop_sending(self, stream_id: int, code: int) -> None:
        if self._core is not None and not self.ended:
            with suppress(ValueError):  # the stream is over
                self._native(self._core.reset_stream, stream_id, code)
                self._leaving.add(stream_id)

    def reset_stream(self, stream_id: int, error_code: int) -> None:
        """What HTTP/3 itself calls where a request ends early: an answer that is written to its end goes out."""
        if self.writable(stream_id):
            self.stop_sending(stream_id, error_code)

    def writable(self, stream_id: int) -> bool:
        return self._core is not None and not self.ended and self._core.can_send_stream(stream_id)

    def unsent(self, stream_id: int) -> int:
        return int(self.get_send_buffer_size(stream_id))

    def delivered(self, stream_id: int) -> bool:
        """Of a stream that the peer opened: both directions have ended."""
        return stream_id not in self._leaving

    def send_ping(self, uid: int) -> None:
        if not self.ended:
            super().send_ping(uid)

    def take_lost(self) -> int:
        if self._core is None:
            return 0
        count, self._lost = self._core.loss_total - self._lost, self._core.loss_total
        return count

    # ---- the connection as a whole

    @property
    def started(self) -> bool:
        return self._core is not None and self._core.received_authenticated_packet

    @property
    def handshaken(self) -> bool:
        return bool(self._handshake_complete)

    @property
    def ended(self) -> bool:
        return self._close_event is not None

    @property
    def ending(self) -> Ending | None:
        event = self._close_event
        if event is None:
            return None
        if self._by == "silence":
            return Ending("silence", 0, False, event.reason_phrase)
        return Ending(self._by, event.error_code, event.frame_type is None, event.reason_phrase)

    @property
    def end_reason(self) -> str:
        event = self._close_event
        return "" if event is None else f"{event.reason_phrase or 'no reason given'} (0x{event.error_code:x})"

    @property
    def idle_timeout(self) -> float:
        peer = None if self._tls is None else self._tls.remote_transport_parameters
        ours = float(self._configuration.idle_timeout)
        return min(ours, peer.max_idle_timeout / 1000) if peer is not None and peer.max_idle_timeout else ours

    @property
    def rtt(self) -> float | None:
        """The least of those that were asked for: the core tells only the latest."""
        latest = None if self._core is None else self._core.latest_rtt
        if latest is not None:
            self._rtt = latest if self._rtt is None else min(self._rtt, latest)
        return self._rtt

    @property
    def settled(self) -> bool:
        return self._moves >= MOVES

    def get_peer_address(self) -> Address | None:
        return self._peer


def _of_tls(event: Any) -> events.QuicEvent:
    """Events of the handshake come from the library's TLS, in its own classes."""
    if isinstance(event, native_events.HandshakeCompleted):
        return events.HandshakeCompleted(event.alpn_protocol, event.early_data_accepted, event.session_resumed)
    if isinstance(event, native_events.ProtocolNegotiated):
        return events.ProtocolNegotiated(event.alpn_protocol)
    assert isinstance(event, events.QuicEvent)
    return event
