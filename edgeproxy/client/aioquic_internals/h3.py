"""HTTP/3 as the project needs it (RFC 9114): with limits, and errors of a message confined to its stream."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import cast

import pylsqpack
from aioquic.buffer import encode_uint_var
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
from aioquic.quic.connection import QuicConnection, stream_is_unidirectional
from aioquic.quic.events import StreamDataReceived

from edgeproxy.client.any_quic import AnyQuic

CONTROL_FRAME_BYTES = 4096
"""A longer SETTINGS frame than this is an attack: the library buffers it whole."""


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

    def __init__(self, quic: AnyQuic, *, head_bytes: int, fields: int) -> None:
        """`head_bytes`: of a field section as RFC 9114 section 4.2.2 counts (name + value + 32). `fields`: lines."""
        self._head_bytes = head_bytes
        self._fields = fields
        self._refused: set[int] = set()
        self._idle_frames = 0.0
        self.going_away = False
        """The peer sent GOAWAY: it takes no further requests here."""
        # What the library itself asks of a connection is `configuration`, `_quic_logger`, `close` and what sends.
        super().__init__(cast(QuicConnection, quic))
        self._any_quic = quic

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
        size = 32 * len(headers) + sum(map(len, chain.from_iterable(headers)))
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

    def _receive_stream_data(self, event: StreamDataReceived) -> list[H3Event]:
        stream_id = event.stream_id
        if stream_is_unidirectional(stream_id):
            return super()._receive_stream_data(event)
        # As the library does it, but for a context manager that it makes for each event.
        stream = self._stream.get(stream_id)
        if stream is None:
            stream = self._stream[stream_id] = H3Stream(stream_id)
        try:
            return self._receive_request_or_push_data(stream, event.data, event.end_stream)
        finally:
            if stream.is_ended():
                self._stream.pop(stream_id, None)

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
        if self._any_quic.writable(stream_id):
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
        self._any_quic.stop_sending(stream_id, code)
        self._sending_ended(stream_id)

    def ignore(self, stream_id: int, code: int) -> None:
        """Ask the peer to send no more on the stream, and drop what still comes."""
        stream = self._stream.get(stream_id)
        if stream is not None and not stream.receiving_ended:
            stream.buffer = b""
            self._refused.add(stream_id)
        self._any_quic.stop_receiving(stream_id, code)

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
