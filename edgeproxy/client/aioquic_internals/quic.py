"""A QUIC connection as the project needs it (RFC 9000), and the refusal of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from aioquic.buffer import UINT_VAR_MAX_SIZE
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnectionState
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch

from edgeproxy.client.aioquic_internals.peer_reset import ResettableQuic
from edgeproxy.client.any_quic import Ending

UNI_STREAMS = 8
"""Unidirectional streams open to the peer: control, two for QPACK, and some of types that we ignore."""
LEAST_STREAM_FRAME = 4
"""Octets before its data: type, an id of one octet, two of length (as the library writes it)."""
_TIMED_OUT = "Idle timeout"
"""How the library calls it; its code is that of an internal error."""


class Quic(ResettableQuic):
    """A QUIC connection whose receive credit follows what has been read, and whose send queue can be seen."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        streams: int = 0,
        reset_token: Callable[[bytes], bytes] | None = None,
        **roles: Any,
    ) -> None:
        """`streams`: requests the peer may have open at once. `reset_token`: of a server, what it gives out with each
        connection id, of 16 octets; by default nobody else can know them. `roles`: keywords of QuicConnection."""
        super().__init__(configuration=configuration, **roles)
        self._reset_token = reset_token
        self._give_tokens()
        for limit, value in ((self._local_max_streams_bidi, streams), (self._local_max_streams_uni, UNI_STREAMS)):
            limit.value = limit.sent = value
        self._unread: dict[int, int] = {}
        self._unread_total = 0
        self._wrote = False
        self._lost = 0
        self._count_losses()

    def _count_losses(self) -> None:
        forget = self._loss._on_packets_lost

        def counted(**found: Any) -> None:
            if found.get("congestion_event", True):  # else it is sent again without a sign of loss
                self._lost += len(found["packets"])
            forget(**found)

        self._loss._on_packets_lost = counted  # type: ignore[method-assign]

    # Tokens of stateless resets go out with connection ids (RFC 9000 sections 18.2 and 19.15).

    def _give_tokens(self) -> None:
        if self._reset_token is not None:
            for issued in self._host_cids:
                issued.stateless_reset_token = self._reset_token(issued.cid)

    def _replenish_connection_ids(self) -> None:
        super()._replenish_connection_ids()
        self._give_tokens()

    # What has been received and not read holds back credit (RFC 9000 section 4.1).

    def hold(self, stream_id: int, size: int) -> None:
        """`size` octets of the stream wait for a reader."""
        self._unread[stream_id] = self._unread.get(stream_id, 0) + size
        self._unread_total += size

    def release(self, stream_id: int, size: int) -> bool:
        """A reader took `size` octets that were held. True when that is worth a datagram that grants more."""
        self._unread[stream_id] -= size
        self._unread_total -= size
        stream = self._streams.get(stream_id)
        return self._data_due() or (stream is not None and self._stream_data_due(stream))

    def forget(self, stream_id: int) -> None:
        """Nobody will read what is still held."""
        self._unread_total -= self._unread.pop(stream_id, 0)

    def _data_due(self) -> bool:
        window = self._configuration.max_data
        return self._local_max_data.used + window // 2 - self._unread_total >= self._local_max_data.value

    def _stream_data_due(self, stream: QuicStream) -> bool:
        receiver = stream.receiver
        if receiver.is_finished or receiver._stop_error_code is not None or not stream.max_stream_data_local:
            return False
        return self._wanted(stream) - stream.max_stream_data_local >= self._configuration.max_stream_data // 2

    def _wanted(self, stream: QuicStream) -> int:
        read = stream.receiver.starting_offset() - self._unread.get(stream.stream_id or 0, 0)
        return read + self._configuration.max_stream_data

    def _write_stream_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream) -> None:
        # For each open stream and each packet: what nearly always holds is asked first, and without a call.
        receiver = stream.receiver
        if receiver.is_finished and stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        if self._stream_data_due(stream):
            stream.max_stream_data_local = self._wanted(stream)
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            # The library doubles the limit once half of it has arrived; with nothing arrived it only announces it.
            arrived, receiver.highest_offset = receiver.highest_offset, 0
            try:
                super()._write_stream_limits(builder=builder, space=space, stream=stream)
            finally:
                receiver.highest_offset = arrived

    def _write_stream_frame(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream, max_offset: int
    ) -> int:
        # A packet that is full is still offered to every stream that has something to send.
        if builder.remaining_flight_space < LEAST_STREAM_FRAME:
            return 0
        return super()._write_stream_frame(builder=builder, space=space, stream=stream, max_offset=max_offset)

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        limit = self._local_max_data
        if self._data_due():
            wanted = limit.used - self._unread_total - self._out_of_order() + self._configuration.max_data
            limit.value = max(limit.value, wanted)
        used, limit.used = limit.used, 0
        try:
            super()._write_connection_limits(builder=builder, space=space)
        finally:
            limit.used = used

    def _out_of_order(self) -> int:
        receivers = (stream.receiver for stream in self._streams.values())
        return sum(r.highest_offset - r.starting_offset() for r in receivers if not r.is_finished)

    # What has been written and not sent.

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        super().send_stream_data(stream_id, data, end_stream)
        self._wrote = True

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        # An acknowledgement waits 1 ms for company; data that leaves now is company, and saves a datagram.
        space = self._spaces.get(Epoch.ONE_RTT)
        if self._wrote and space is not None and space.ack_at is not None:
            space.ack_at = now
        self._wrote = False
        # Each packet asks every stream in the queue. Those that wait for their application, or for acknowledgements,
        # have nothing to say, and are nearly all of them.
        waiting: list[QuicStream] = []
        due: list[QuicStream] = []
        for stream in self._streams_queue:
            (due if _has_something(stream) else waiting).append(stream)
        self._streams_queue = due
        try:
            return super().datagrams_to_send(now)
        finally:
            self._streams_queue = waiting + self._streams_queue  # who was served stands last, as ever

    def unsent(self, stream_id: int) -> int:
        """Octets written to the stream that neither congestion control nor the peer's credit has let out yet."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.sender._buffer_stop - stream.sender.highest_offset

    def delivered(self, stream_id: int) -> bool:
        """The peer has acknowledged the end, or the reset, of what we send on the stream."""
        stream = self._streams.get(stream_id)
        return stream is None or stream.sender.is_finished

    def writable(self, stream_id: int) -> bool:
        """Neither ended, nor reset by us or at the peer's request; its event may still wait to be handled."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return not self._stream_is_discarded(stream_id)
        return stream.sender._buffer_fin is None and stream.sender._reset_error_code is None

    def stop_receiving(self, stream_id: int, code: int) -> None:
        """STOP_SENDING, unless everything has arrived."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            stream.receiver.stop(code)

    def stop_sending(self, stream_id: int, code: int) -> None:
        """RESET_STREAM, unless everything has been acknowledged."""
        if stream_id in self._streams:
            self.reset_stream(stream_id, code)

    # The connection as a whole.

    @property
    def started(self) -> bool:
        """A packet of the peer has been decrypted."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def ended(self) -> bool:
        """Closed by either side or timed out; the library's own event comes only after the draining period."""
        return self._close_event is not None

    @property
    def ending(self) -> Ending | None:
        """None while the connection is open."""
        event = self._close_event
        if event is None:
            return None
        reason = event.reason_phrase
        if reason == _TIMED_OUT and self._state is QuicConnectionState.TERMINATED:
            return Ending("silence", QuicErrorCode.NO_ERROR, False, reason)
        by: Literal["us", "peer"] = "peer" if self._state is QuicConnectionState.DRAINING else "us"
        return Ending(by, event.error_code, event.frame_type is None, reason)

    @property
    def end_reason(self) -> str:
        event = self._close_event
        return "" if event is None else f"{event.reason_phrase or 'no reason given'} (0x{event.error_code:x})"

    def take_lost(self) -> int:
        """Packets of ours that were lost since the last call, by the acknowledgements of later ones (RFC 9002 section
        6.1)."""
        count, self._lost = self._lost, 0
        return count

    @property
    def settled(self) -> bool:
        return False

    @property
    def handshaken(self) -> bool:
        return self._handshake_complete

    @property
    def idle_timeout(self) -> float:
        """Seconds of silence after which either side drops the connection (RFC 9000 section 10.1)."""
        return self._idle_timeout()

    @property
    def awaits_acknowledgement(self) -> bool:
        """Something is on its way that a living peer answers."""
        return self._loss.bytes_in_flight > 0

    @property
    def rtt(self) -> float | None:
        """Seconds, the least so far: the smoothed one begins with the handshake's. None before the first sample."""
        return self._loss._rtt_min if self._loss._rtt_initialized else None


def _has_something(stream: QuicStream) -> bool:
    """To send, or that it is over: what the library asks of each."""
    receiver, sender = stream.receiver, stream.sender
    over = receiver.is_finished and sender.is_finished
    return bool(over or not sender.buffer_is_empty or sender.reset_pending or receiver.stop_pending)


def refusal_datagram(version: int, source_cid: bytes, destination_cid: bytes, code: QuicErrorCode) -> bytes:
    """An Initial packet that closes a connection attempt before there is any state for it (RFC 9000 section 10.2.3).

    `source_cid` is the destination the client chose; the Initial keys derive from it.
    """
    crypto = CryptoPair()
    crypto.setup_initial(cid=source_cid, is_client=False, version=version)
    builder = QuicPacketBuilder(
        host_cid=source_cid,
        is_client=False,
        max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE,
        peer_cid=destination_cid,
        version=version,
    )
    builder.start_packet(QuicPacketType.INITIAL, crypto)
    frame = builder.start_frame(QuicFrameType.TRANSPORT_CLOSE, capacity=1 + 3 * UINT_VAR_MAX_SIZE)
    for field in (code, QuicFrameType.PADDING, 0):
        frame.push_uint_var(field)
    return builder.flush()[0][0]
