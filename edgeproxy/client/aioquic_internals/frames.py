"""What the frames of a datagram cost, and a bound on what they can make a receiver keep (RFC 9000 sections 12.4, 21.6).

A datagram holds 1,150 PINGs, or 170 STREAM frames of one octet each; the library works on all of them without a word.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection, QuicConnectionError, QuicReceiveContext
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.quic.stream import QuicStreamReceiver

FRAMES = 1500
"""Of one datagram: an Ethernet frame has no room for more, and who sends longer datagrams sends larger frames."""
FREE_FRAMES = 8
"""Of one datagram that bring nothing are taken for granted: acknowledgements, credit, padding, the ends of streams."""
USEFUL_BYTES = 64
"""STREAM and CRYPTO frames of fewer octets on average are taken for ones that bring nothing: they cost as much as long
ones."""
OCTETS_PER_GAP = 512
"""Of a stream's window. What arrives between gaps is kept in a list that is searched for each frame; datagrams that get
lost on their way leave gaps of a thousand octets."""
LEAST_GAPS = 64
_STREAM_FRAMES = range(QuicFrameType.STREAM_BASE, QuicFrameType.STREAM_BASE + 8)

Handler = Callable[[QuicReceiveContext, int, Buffer], None]


class CountedQuic(QuicConnection):
    """A QUIC connection that tells how many frames came, and lets no peer tear a stream into too many pieces."""

    def __init__(self, configuration: QuicConfiguration, **roles: Any) -> None:
        super().__init__(configuration=configuration, **roles)
        self.frames = 0
        """Of the last datagram."""
        self._idle = 0.0
        self._gaps = max(LEAST_GAPS, configuration.max_stream_data // OCTETS_PER_GAP)
        handlers: dict[int, tuple[Handler, object]] = vars(self)["_QuicConnection__frame_handlers"]
        for kind, (handle, epochs) in handlers.items():
            carries = kind in _STREAM_FRAMES or kind == QuicFrameType.CRYPTO
            handlers[kind] = (partial(self._handle_carrying if carries else self._handle_bare, handle), epochs)

    @property
    def idle_frames(self) -> float:
        """Of the last datagram: those that brought nothing, less what long ones make good and what is granted."""
        return max(0.0, self._idle - FREE_FRAMES)

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        self.frames, self._idle = 0, 0.0
        super().receive_datagram(data, addr, now)

    def _count(self, frame_type: int) -> None:
        self.frames += 1
        if self.frames > FRAMES:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "too many frames in a datagram")

    def _handle_bare(self, handle: Handler, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        self._count(frame_type)
        self._idle += 1
        handle(context, frame_type, buf)

    def _handle_carrying(self, handle: Handler, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        self._count(frame_type)
        start, told = buf.tell(), len(self._events)
        try:
            handle(context, frame_type, buf)
        finally:  # frames for streams that have ended are refused, and cost the same
            self._idle += max(1 - (buf.tell() - start) / USEFUL_BYTES, -4.0)
        if len(self._events) > told:  # it came in order, and leaves no gap
            return
        receiver = self._receiver_of(context, frame_type, buf, start)
        if receiver is not None and len(receiver._ranges) > self._gaps:
            raise QuicConnectionError(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "a stream in too many pieces")

    def _receiver_of(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer, start: int
    ) -> QuicStreamReceiver | None:
        """`start`: where in `buf` the fields of the frame begin."""
        if frame_type == QuicFrameType.CRYPTO:
            return self._crypto_streams[context.epoch].receiver
        end = buf.tell()
        buf.seek(start)
        stream = self._streams.get(buf.pull_uint_var())
        buf.seek(end)
        return None if stream is None else stream.receiver
