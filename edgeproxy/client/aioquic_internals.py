"""Everything in the project that touches private parts of aioquic (1.7.x), for server and client alike.

aioquic grants receive credit whether or not anyone reads, buffers a field section of any length and tells nobody what
is still unsent. What is missing is added here, and only here; `tests/client/test_aioquic_internals.py` fails where an
update of the library moves what this file stands on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pylsqpack
from aioquic.buffer import UINT_VAR_MAX_SIZE, encode_uint_var
from aioquic.h3.connection import (
    ClosedCriticalStream,
    ErrorCode,
    FrameType,
    FrameUnexpected,
    H3Connection,
    H3Stream,
    HeadersState,
    MessageError,
    ProtocolError,
    Setting,
    StreamType,
    encode_frame,
)
from aioquic.h3.events import H3Event, Headers, HeadersReceived
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionState
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import Epoch

UNI_STREAMS = 8
"""Unidirectional streams open to the peer: control, two for QPACK, and some of types that we ignore."""
CONTROL_FRAME_BYTES = 4096
"""A longer SETTINGS frame than this is an attack: the library buffers it whole."""


class Quic(QuicConnection):
    """A QUIC connection whose receive credit follows what has been read, and whose send queue can be seen."""

    def __init__(self, configuration: QuicConfiguration, *, streams: int = 0, **roles: Any) -> None:
        """`streams`: requests the peer may have open at once. `roles`: keywords of QuicConnection."""
        super().__init__(configuration=configuration, **roles)
        for limit, value in ((self._local_max_streams_bidi, streams), (self._local_max_streams_uni, UNI_STREAMS)):
            limit.value = limit.sent = value
        self._unread: dict[int, int] = {}
        self._unread_total = 0
        self._wrote = False

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
        receiver = stream.receiver
        if self._stream_data_due(stream):
            stream.max_stream_data_local = self._wanted(stream)
        if stream.max_stream_data_local_sent != stream.max_stream_data_local:
            # The library doubles the limit once half of it has arrived; with nothing arrived it only announces it.
            arrived, receiver.highest_offset = receiver.highest_offset, 0
            try:
                super()._write_stream_limits(builder=builder, space=space, stream=stream)
            finally:
                receiver.highest_offset = arrived

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
        return super().datagrams_to_send(now)

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
    def end_reason(self) -> str:
        event = self._close_event
        return "" if event is None else f"{event.reason_phrase or 'no reason given'} (0x{event.error_code:x})"

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


@dataclass
class MessageRefused(H3Event):
    """A message that was not let in; whatever else arrives on its stream is ignored."""

    stream_id: int
    too_large: bool
    """Its field section exceeds the limits; otherwise it is malformed (RFC 9114 section 4.1.2)."""
    reason: str


class _FieldsTooLarge(Exception):
    pass


class H3(H3Connection):
    """HTTP/3 with a static QPACK table, bounded field sections, and errors of a message confined to its stream.

    On a server the *head* of a request is handed out decoded but not validated: that is the caller's part.
    """

    def __init__(self, quic: Quic, *, head_bytes: int, fields: int) -> None:
        """`head_bytes`: of a field section as RFC 9114 section 4.2.2 counts (name + value + 32). `fields`: lines."""
        self._head_bytes = head_bytes
        self._fields = fields
        self._refused: set[int] = set()
        self._idle_frames = 0.0
        self.going_away = False
        """The peer sent GOAWAY: it takes no further requests here."""
        super().__init__(quic)
        self._quic: Quic = quic

    def _init_connection(self) -> None:
        # With a dynamic table, one small frame can decode to any number of large fields.
        self._max_table_capacity = self._blocked_streams = 0
        self._decoder = pylsqpack.Decoder(0, 0)
        self._max_push_id = None
        super()._init_connection()

    def _get_local_settings(self) -> dict[int, int]:
        return {
            Setting.QPACK_MAX_TABLE_CAPACITY: 0,
            Setting.QPACK_BLOCKED_STREAMS: 0,
            Setting.MAX_FIELD_SECTION_SIZE: self._head_bytes,
        }

    # Limits of what is received

    def take_idle_frames(self) -> float:
        """How many frames came since the last call that bring a request no further, less what long ones make good."""
        count, self._idle_frames = self._idle_frames, 0.0
        return count

    def _check_control_frame_type(self, frame_type: int) -> None:
        super()._check_control_frame_type(frame_type)
        self._idle_frames += 1
        assert self._peer_control_stream_id is not None
        size = self._stream[self._peer_control_stream_id].frame_size
        if frame_type in (FrameType.SETTINGS, FrameType.MAX_PUSH_ID) and (size or 0) > CONTROL_FRAME_BYTES:
            raise ExcessiveLoad("control frame too long")
        if frame_type == FrameType.GOAWAY:
            self.going_away = True

    def _handle_control_frame(self, frame_type: int, frame_data: bytes) -> None:
        super()._handle_control_frame(frame_type, frame_data)
        # A fresh encoder knows no dynamic table: no response waits for a lost packet of the encoder stream.
        self._encoder = pylsqpack.Encoder()

    def _check_request_or_push_frame_type(self, frame_type: int, stream: H3Stream) -> None:
        if frame_type == FrameType.WEBTRANSPORT_STREAM:
            raise FrameUnexpected("WebTransport was not negotiated")
        if frame_type == FrameType.HEADERS and (stream.frame_size or 0) > self._head_bytes:
            raise _FieldsTooLarge
        super()._check_request_or_push_frame_type(frame_type, stream)
        size = stream.frame_size or 0  # DATA of fewer than 64 octets on average is charged
        useful = size / 64 if frame_type == FrameType.DATA else 2.0 * (frame_type == FrameType.HEADERS and size > 0)
        self._idle_frames += max(1 - useful, -4.0)

    def _receive_stream_data_uni(self, stream: H3Stream, data: bytes, stream_ended: bool) -> list[H3Event]:
        events = super()._receive_stream_data_uni(stream, data, stream_ended)
        if stream_ended and stream.stream_type in (StreamType.QPACK_ENCODER, StreamType.QPACK_DECODER):
            raise ClosedCriticalStream("QPACK streams stay open")
        return events

    def _decode_headers(self, stream_id: int, frame_data: bytes | None) -> Headers:
        # The decoder does not know that a field section may be empty.
        headers = [] if frame_data == b"\0\0" else super()._decode_headers(stream_id, frame_data)
        size = 32 * len(headers) + sum([len(name) + len(value) for name, value in headers])
        if len(headers) > self._fields or size > self._head_bytes:
            raise _FieldsTooLarge
        return headers

    def _handle_request_or_push_frame(
        self, frame_type: int, frame_data: bytes | None, stream: H3Stream, stream_ended: bool
    ) -> list[H3Event]:
        head = frame_type == FrameType.HEADERS and stream.headers_recv_state == HeadersState.INITIAL
        if self._is_client or not head:
            return super()._handle_request_or_push_frame(frame_type, frame_data, stream, stream_ended)
        headers = self._decode_headers(stream.stream_id, frame_data)
        stream.headers_recv_state = HeadersState.AFTER_HEADERS
        return [HeadersReceived(headers=headers, stream_id=stream.stream_id, stream_ended=stream_ended)]

    def _check_content_length(self, stream: H3Stream) -> None:
        # The answer to HEAD, and a 304, tell the length of a body that they do not have (RFC 9110 section 8.6).
        if not (self._is_client and stream.content_length == 0):
            super()._check_content_length(stream)

    def _receive_request_or_push_data(self, stream: H3Stream, data: bytes, stream_ended: bool) -> list[H3Event]:
        if stream.stream_id in self._refused:
            if stream_ended:
                self._refused.discard(stream.stream_id)
                stream.receiving_ended = True
            return []
        try:
            return super()._receive_request_or_push_data(stream, data, stream_ended)
        except _FieldsTooLarge:
            refusal = MessageRefused(stream.stream_id, True, "the field section exceeds the limits")
        except MessageError as error:
            refusal = MessageRefused(stream.stream_id, False, error.reason_phrase)
        stream.buffer = b""
        if not stream_ended:
            self._refused.add(stream.stream_id)
        return [refusal]

    def _receive_stream_reset(self, stream_id: int) -> None:
        self._refused.discard(stream_id)
        super()._receive_stream_reset(stream_id)

    # What is sent

    def write_head(self, stream_id: int, headers: Headers, data: bytes = b"", end: bool = False) -> None:
        """HEADERS, and DATA if there is any, as one write; dropped where the peer has stopped the stream."""
        if stream_id not in self._stream:
            self._stream[stream_id] = H3Stream(stream_id)
        instructions, block = self._encoder.encode(stream_id, headers)
        if instructions and self._local_encoder_stream_id is not None:
            self._quic.send_stream_data(self._local_encoder_stream_id, instructions)
        head = encode_uint_var(FrameType.HEADERS) + encode_uint_var(len(block)) + block
        self._send(stream_id, head + data_frame(data) if data else head, end)

    def write_data(self, stream_id: int, data: bytes, end: bool = False) -> None:
        self._send(stream_id, data_frame(data) if data else b"", end)

    def _send(self, stream_id: int, frames: bytes, end: bool) -> None:
        if self._quic.writable(stream_id):
            self._quic.send_stream_data(stream_id, frames, end)
        if end:
            self._sending_ended(stream_id)

    def _sending_ended(self, stream_id: int) -> None:
        stream = self._stream.get(stream_id)
        if stream is not None:
            stream.sending_ended = True
            if stream.is_ended():
                del self._stream[stream_id]

    def abort(self, stream_id: int, code: int) -> None:
        """Reset what we send on the stream and refuse what we receive."""
        self.ignore(stream_id, code)
        self._quic.stop_sending(stream_id, code)
        self._sending_ended(stream_id)

    def ignore(self, stream_id: int, code: int) -> None:
        """Ask the peer to send no more on the stream, and drop what still comes."""
        stream = self._stream.get(stream_id)
        if stream is not None and not stream.receiving_ended:
            stream.buffer = b""
            self._refused.add(stream_id)
        self._quic.stop_receiving(stream_id, code)

    def is_ignored(self, stream_id: int) -> bool:
        return stream_id in self._refused

    def goaway(self, stream_id: int) -> None:
        """Requests on `stream_id` and above will not be served (RFC 9114 section 5.2)."""
        assert self._local_control_stream_id is not None
        frame = encode_frame(FrameType.GOAWAY, encode_uint_var(stream_id))
        self._quic.send_stream_data(self._local_control_stream_id, frame)


class ExcessiveLoad(ProtocolError):
    error_code = ErrorCode.H3_EXCESSIVE_LOAD


def data_frame(data: bytes) -> bytes:
    return b"\x00" + encode_uint_var(len(data)) + data


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
