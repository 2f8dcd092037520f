"""An HTTP/2 connection (RFC 9113): streams and their windows on the sans-I/O `h2`, floods, deadlines, drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import cast

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.allowance import Allowance
from edgeproxy.wire.goodbye import hang_up
from edgeproxy.wire.h2_internals import LAST_OF_ALL, ClientGoesAway, ServerH2
from edgeproxy.wire.h2_stream import Stream
from edgeproxy.wire.ingress import SCOPE_KEY, Ingress, Scope
from edgeproxy.wire.message_head import Headers, MalformedRequest, RequestHead, check_trailers, parse_request
from edgeproxy.wire.rtt import RoundTrip
from edgeproxy.wire.service import Service
from edgeproxy.wire.stall import StallWatch
from edgeproxy.wire.turns import Turns
from edgeproxy.wire.wire_error import excessive_load, protocol_error, too_large

_GOAWAY_GAP_S = 0.2
"""Between the two GOAWAYs of a drain, for requests on their way (RFC 9113 section 6.8)."""
_FLUSH_BYTES = 65536
_WINDOW_UPDATES_PER_WRITE = 2.0
"""That a client may send for each DATA frame that it is sent, without being charged for them: one for the stream, one
for the connection."""


class H2Connection(asyncio.Protocol):
    """`h2` takes a whole frame before its events are seen, so a stream may have ended by the time of its event:
    whatever is written to it then is dropped, as it would be on the wire."""

    def __init__(self, service: Service, lost: Callable[[], None]) -> None:
        self._service = service
        self._limits = service.limits
        self._lost = lost
        self._h2 = ServerH2(service.limits)
        self._transport: asyncio.Transport
        self._stall: StallWatch
        self._round_trip: RoundTrip
        self._client: tuple[str, int] | None = None
        self._server: tuple[str, int] | None = None
        self._streams: dict[int, Stream] = {}
        """From the head of the request until the application has returned and the stream has ended."""
        self._write_paused = False
        self._unflushed = 0
        self._flushing = False
        self._resting = False
        """The socket is not read until the frames that have come are worked on."""
        self._closing = False
        """Nothing is read any more."""
        self._goes_away = False
        """No stream is opened any more; closes after the last one."""
        self._read_at = time.monotonic()
        self._deadline = inf
        self._resets = Allowance(self._limits.resets_burst, self._limits.resets_per_s, self._read_at)
        self._control = Allowance(self._limits.control_burst, self._limits.control_per_s, self._read_at)
        self._turns = Turns(service.loop, self._limits.frames_per_turn, self._rest, self._work)

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        self._stall = StallWatch(self._transport, self._limits.stalled_write_s)
        self._round_trip = RoundTrip(self._transport)
        self._service.connections.add(self)
        self._client = _address(transport.get_extra_info("peername"))
        self._server = _address(transport.get_extra_info("sockname"))
        self._deadline = time.monotonic() + self._limits.first_byte_s
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._read_at = time.monotonic()
        try:
            self._h2.feed(data)
        except ProtocolError:
            self._close(protocol_error())  # h2 has written the GOAWAY that says why
            return
        if not self._turns.waiting:
            self._work()

    def eof_received(self) -> None:
        self._lose_all()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose_all()
        self._service.connections.discard(self)
        self._lost()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake()

    # ---- frames and their events

    def _work(self) -> None:
        """On the frames that have come, as many as this turn allows."""
        while not (self._closing or self._turns.waiting):
            try:
                found = self._h2.next_frame()
            except ProtocolError:
                self._close(protocol_error())
                return
            if found is None:
                if self._h2.frame_too_large:
                    self._fail(ErrorCodes.FRAME_SIZE_ERROR)
                elif self._h2.head_too_large:
                    self._fail(ErrorCodes.ENHANCE_YOUR_CALM)
                self._read_on()
                break
            events, cost, work = found
            for event in events:
                self._handle(event)
            if not self._control.take(self._read_at, cost):
                self._fail(ErrorCodes.ENHANCE_YOUR_CALM)
            self._turns.spend(work)
        self._flush_soon()

    def _rest(self) -> None:
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._resting = True

    def _read_on(self) -> None:
        if self._resting and not self._transport.is_closing():
            self._resting = False
            self._transport.resume_reading()

    def _handle(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self._open(event)
        elif isinstance(event, DataReceived):
            self._data(event)
        elif isinstance(event, StreamEnded):
            if (stream := self._streams.get(event.stream_id)) is not None:
                stream.completed(self._read_at)
                stream.finished()
        elif isinstance(event, StreamReset):
            self._reset_received(event.stream_id)
        elif isinstance(event, WindowUpdated):
            if event.stream_id:
                self._wake(event.stream_id)
            else:
                self._wake()
        elif isinstance(event, ClientGoesAway):
            self._goes_away = True
            self._close_if_done()
        elif isinstance(event, TrailersReceived):
            self._trailers(event)
        elif isinstance(event, RemoteSettingsChanged):
            self._wake()

    def _open(self, event: RequestReceived) -> None:
        stream_id, limits = event.stream_id, self._limits
        self._deadline = inf
        if self._goes_away or len(self._streams) >= limits.streams_per_connection:
            self._turn_away(stream_id, ErrorCodes.REFUSED_STREAM)
            return
        try:
            head = parse_request(_with_authority(event.headers))
        except MalformedRequest:
            self._turn_away(stream_id, ErrorCodes.PROTOCOL_ERROR)
            return
        ingress = Ingress("h2", self._read_at, self.rtt)
        stream = Stream(self._service, self, stream_id, head, ingress, self._scope(head, ingress))
        self._streams[stream_id] = stream
        error = too_large(head, limits)
        if error is not None:
            stream.refuse(error)
        else:
            stream.start()

    def _turn_away(self, stream_id: int, code: ErrorCodes) -> None:
        """Costs the client as little as a request that it takes back, and us as much."""
        self.reset(stream_id, code)
        self._spend_reset()
        self._idle()

    def _data(self, event: DataReceived) -> None:
        size = event.flow_controlled_length
        stream = self._streams.get(event.stream_id)
        if stream is None:
            self.taken(event.stream_id, size)
        else:
            stream.arrived(event.data, size)

    def _trailers(self, event: TrailersReceived) -> None:
        try:
            if event.stream_ended is None:
                raise MalformedRequest("trailers without the end of their stream")
            check_trailers(event.headers)
        except MalformedRequest:
            self._spend_reset()
            stream = self._streams.get(event.stream_id)
            if stream is not None:
                stream.malformed()
            else:
                self.reset(event.stream_id, ErrorCodes.PROTOCOL_ERROR)

    def _reset_received(self, stream_id: int) -> None:
        """A reset of an unfinished request is charged whoever caused it (CVE-2023-44487, CVE-2025-8671)."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.answered:
            self._spend_reset()
        if stream is not None:
            stream.lose()

    def _spend_reset(self) -> None:
        if not self._resets.take(self._read_at):
            self._fail(ErrorCodes.ENHANCE_YOUR_CALM)

    # ---- the streams' side

    def write_head(self, stream_id: int, fields: Headers, *, end: bool) -> None:
        self._try(lambda: self._h2.send_headers(stream_id, fields, end_stream=end))

    def write_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        self._try(lambda: self._h2.send_data(stream_id, data, end_stream=end))
        self._control.take(self._read_at, -_WINDOW_UPDATES_PER_WRITE)
        self._unflushed += len(data)
        if self._unflushed >= _FLUSH_BYTES:
            self._flush()

    def room(self, stream_id: int) -> int:
        if self._write_paused:
            return 0
        try:
            return min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
        except ProtocolError:
            return 0

    def waits(self, stream_id: int) -> None:
        self._streams[stream_id] = self._streams.pop(stream_id)

    def taken(self, stream_id: int, size: int) -> None:
        if size:
            self._try(lambda: self._h2.acknowledge_received_data(size, stream_id))

    def reset(self, stream_id: int, code: ErrorCodes) -> None:
        self._try(lambda: self._h2.reset_stream(stream_id, code))

    def nudge(self) -> None:
        self._try(lambda: self._h2.ping(bytes(8)))

    def settled(self, stream: Stream) -> None:
        if stream.over and self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
            self._idle()

    def _try(self, action: Callable[[], None]) -> None:
        if self._closing:
            return
        try:
            action()
        except ProtocolError:
            return  # the stream ended in a frame whose event is still to come
        self._flush_soon()

    # ---- the listener's side

    def sweep(self, now: float) -> None:
        for stream in tuple(self._streams.values()):
            stream.sweep(now)
        if self._stall.stalled(now):
            self.abort()
        elif now >= self._deadline:
            self._close()

    def drain(self) -> None:
        if self._goes_away or self._closing:
            return
        if self._streams:
            self._announce(LAST_OF_ALL)
            self._service.loop.call_later(_GOAWAY_GAP_S, self._go_away)
        else:
            self._go_away()

    def abort(self) -> None:
        self._lose_all()
        self._transport.abort()

    def rtt(self) -> float | None:
        """Seconds, the kernel's smallest of late; None once the connection is lost."""
        return self._round_trip.at(time.monotonic()) if self in self._service.connections else None

    # ---- the connection's own

    def _go_away(self) -> None:
        """Streams that come from now on are refused, which tells their client that it can send them again."""
        if self._closing:
            return
        self._goes_away = True
        self._announce(self._h2.highest_inbound_stream_id)
        self._close_if_done()

    def _announce(self, last_stream_id: int) -> None:
        self._flush()
        self._transport.write(self._h2.goaway(last_stream_id))

    def _idle(self) -> None:
        if not self._streams and not self._closing:
            self._deadline = time.monotonic() + self._limits.keep_alive_s
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._goes_away and not self._streams:
            self._close()

    def _fail(self, code: ErrorCodes) -> None:
        if not self._closing:
            self._h2.close_connection(code)
            self._close(excessive_load() if code is ErrorCodes.ENHANCE_YOUR_CALM else protocol_error())

    def _close(self, error: ApiError | None = None) -> None:
        """`error`: what the client did wrong."""
        if not self._closing:
            self._flush()
            self._lose_all(error)
            if self._goes_away:
                hang_up(self._transport)
            else:
                self._transport.close()

    def _lose_all(self, error: ApiError | None = None) -> None:
        self._closing = True
        self._deadline = inf
        for stream in tuple(self._streams.values()):
            stream.cut(error)

    def _wake(self, stream_id: int | None = None) -> None:
        for stream in tuple(self._streams.values()):
            if stream_id is None or stream.id == stream_id:
                stream.writable()

    def _flush_soon(self) -> None:
        """Frames of one turn of the loop leave in one write."""
        if not self._flushing:
            self._flushing = True
            self._service.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._unflushed = 0
        data = self._h2.data_to_send()
        if data and not self._closing:
            self._transport.write(data)

    def _scope(self, head: RequestHead, ingress: Ingress) -> Scope:
        return head.scope(
            http_version="2",
            scheme=self._service.scheme,
            client=self._client,
            server=self._server,
            state=self._service.state.copy(),
            extensions={SCOPE_KEY: ingress},
        )


def _with_authority(fields: Headers) -> Headers:
    """A client may name the host in `host` alone (RFC 9113 section 8.3.1)."""
    if any(name == b":authority" for name, _ in fields):
        return fields
    return [(b":authority", value) for name, value in fields if name == b"host"] + fields


def _address(name: object) -> tuple[str, int] | None:
    return (name[0], name[1]) if isinstance(name, tuple) else None
