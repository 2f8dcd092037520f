"""HTTP/3 in, ASGI out (RFC 9114): one session a connection, one application task a request."""

from __future__ import annotations

import logging
import time
from typing import Any

from aioquic.h3.connection import H3_ALPN, ErrorCode
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.events import (
    HandshakeCompleted,
    PingAcknowledged,
    ProtocolNegotiated,
    QuicEvent,
    StopSendingReceived,
    StreamDataReceived,
    StreamReset,
)

from edgeproxy.client.aioquic_internals import H3, MessageRefused
from edgeproxy.client.any_quic import AnyQuic
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.allowance import Allowance
from edgeproxy.wire.h3_request import Request, write_error
from edgeproxy.wire.ingress import SCOPE_KEY, Ingress
from edgeproxy.wire.message_head import MalformedRequest, RequestHead, parse_request
from edgeproxy.wire.quic_connection import Connection, Home
from edgeproxy.wire.quic_errors import cause
from edgeproxy.wire.service import Service
from edgeproxy.wire.wire_error import too_large

_log = logging.getLogger(__name__)

PING_S = 10.0
"""At most this long between signs of life while a request is open: models may think longer than clients wait."""
_DATAGRAMS_PER_REQUEST = 2
"""That are as much work as one request."""
_ALL_STREAMS = (1 << 62) - 4
_KEEP_ALIVE, _DRAIN = 1, 2
_PATIENCE = 3
"""With a client that does not acknowledge an answer while the connection drains: packets may be lost, and twice."""
_SAFE = ("GET", "HEAD")
"""Methods that may run before the handshake has shown that the client means it now (RFC 8470 section 2.1)."""


class Session(Connection):
    """The HTTP/3 side of one QUIC connection."""

    def __init__(self, service: Service, quic: AnyQuic, endpoint: Home, host: str, now: float) -> None:
        super().__init__(quic, endpoint, host, now)
        self.requests: dict[int, Request] = {}
        """By stream; from the head of the request until its application returns."""
        self.blocked: dict[Request, None] = {}
        self._service = service
        self._h3: H3 | None = None
        self._opening: dict[int, float] = {}
        """Streams whose request head has begun to arrive, and when."""
        self._leaving: set[int] = set()
        """Streams whose answer is written and not yet acknowledged."""
        self._early: list[Request] = []
        """Came as early data and wait for the end of the handshake."""
        self._resets = Allowance(service.limits.resets_burst, service.limits.resets_per_s, now)
        self._control = Allowance(service.limits.control_burst, service.limits.control_per_s, now)
        self._next_stream = 0
        self._idle_since = now
        self._pinged: float | None = None
        self._heard = now
        self._draining_since: float | None = None
        self._closes_at: int | None = None
        """The final GOAWAY: streams from here on are not served."""

    @property
    def h3(self) -> H3:
        assert self._h3 is not None, "HTTP/3 begins when ALPN has chosen it"
        return self._h3

    # ---- events

    def event(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived) and self._h3 is not None:
            self._arrived(event, self._h3)
        elif isinstance(event, ProtocolNegotiated):
            limits = self._service.limits
            if event.alpn_protocol not in H3_ALPN:
                self.quic.close(error_code=ErrorCode.H3_VERSION_FALLBACK, reason_phrase="this port speaks h3")
                return
            self._h3 = H3(self.quic, head_bytes=limits.head_bytes, fields=limits.headers)
        elif isinstance(event, PingAcknowledged):
            self._pong(event.uid)
        elif isinstance(event, HandshakeCompleted):
            self._start_early()
        elif isinstance(event, StopSendingReceived | StreamReset) and self._h3 is not None:
            unasked = isinstance(event, StreamReset) and self._is_unasked(event.stream_id)
            self._h3.handle_event(event)
            self._given_up(event.stream_id)
            if unasked:
                self._turn_away(event.stream_id, ErrorCode.H3_REQUEST_INCOMPLETE)

    def _arrived(self, event: StreamDataReceived, h3: H3) -> None:
        stream_id, request = event.stream_id, self.requests.get(event.stream_id)
        if request is not None:
            if event.end_stream:
                request.completed(time.monotonic())
        elif stream_id % 4 == 0 and stream_id not in self._opening and not h3.is_ignored(stream_id):
            self._opening[stream_id] = time.monotonic()
        for message in h3.handle_event(event):
            self._message(message)
        if idle := h3.take_idle_frames():
            self.idle(idle)
        if event.end_stream and stream_id in self._opening:
            self._check_headless(stream_id)

    def _is_unasked(self, stream_id: int) -> bool:
        """Neither a request nor the beginning of one has come on the stream, nor did we end it ourselves."""
        known = stream_id in self.requests or stream_id in self._opening
        return stream_id % 4 == 0 and not (known or self.h3.is_ignored(stream_id))

    def _check_headless(self, stream_id: int) -> None:
        """To be called at the end of a stream: the head of a request may never have come."""
        if self._opening.pop(stream_id, None) is not None:
            self._turn_away(stream_id, ErrorCode.H3_REQUEST_INCOMPLETE)

    def _message(self, message: H3Event) -> None:
        if isinstance(message, HeadersReceived):
            request = self.requests.get(message.stream_id)
            if request is None:
                self._open(message)
            else:  # trailers
                request.arrived(b"", message.stream_ended)
        elif isinstance(message, DataReceived):
            request = self.requests.get(message.stream_id)
            if request is not None:
                request.arrived(message.data, message.stream_ended)
        elif isinstance(message, MessageRefused):
            self._refuse(message)

    def _open(self, message: HeadersReceived) -> None:
        stream_id, limits = message.stream_id, self._service.limits
        first_byte = self._opening.pop(stream_id, time.monotonic())
        if not self.quic.writable(stream_id):  # STOP_SENDING overtook the request
            self._turn_away(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
            return
        closing = self._closes_at is not None and stream_id >= self._closes_at
        if closing or len(self.requests) >= limits.streams_per_connection:
            self.h3.abort(stream_id, ErrorCode.H3_REQUEST_REJECTED)
            return
        self._next_stream = max(self._next_stream, stream_id + 4)
        self._turns.spend(_DATAGRAMS_PER_REQUEST)
        try:
            head = parse_request(message.headers)
        except MalformedRequest as error:
            _log.debug("malformed request from %s: %s", self.host, error)
            self._turn_away(stream_id, ErrorCode.H3_MESSAGE_ERROR)
            return
        error_ = too_large(head, limits)
        if error_ is not None:
            self._answer(stream_id, error_, bodyless=head.method == "HEAD")
            return
        ingress = Ingress("h3", first_byte, self._rtt)
        request = Request(self._service, self, stream_id, head, ingress, self._scope(head, ingress))
        self.requests[stream_id] = request
        if message.stream_ended:
            request.arrived(b"", end=True)
        if request.gone:
            self.finished(request)
        elif self.quic.handshaken or head.method in _SAFE:
            request.start()
        else:
            self._early.append(request)

    def _start_early(self) -> None:
        early, self._early = self._early, []
        for request in early:
            request.start()

    def _scope(self, head: RequestHead, ingress: Ingress) -> dict[str, Any]:
        client, server = self.quic.get_peer_address(), self._endpoint.address
        return head.scope(
            client=(client[0], client[1]) if client else None,
            server=(server[0], server[1]),
            extensions={SCOPE_KEY: ingress},
            state=self._service.state.copy(),
        )

    def _rtt(self) -> float | None:
        return self.quic.rtt

    def _refuse(self, message: MessageRefused) -> None:
        self._opening.pop(message.stream_id, None)
        request = self.requests.get(message.stream_id)
        if request is not None:
            request.reset(ErrorCode.H3_MESSAGE_ERROR)
        elif message.too_large:
            limits = self._service.limits
            text = (
                f"The request's header fields exceed {limits.headers} lines or {limits.head_bytes} bytes; send fewer."
            )
            self._answer(message.stream_id, ApiError(431, text, "headers_too_large"))
        else:
            self._turn_away(message.stream_id, ErrorCode.H3_MESSAGE_ERROR)

    def _turn_away(self, stream_id: int, code: ErrorCode) -> None:
        """Costs the client as little as a request that it takes back, and us as much."""
        self._spend_reset()
        self.h3.abort(stream_id, code)
        self.wake()

    def _answer(self, stream_id: int, error: ApiError, *, bodyless: bool = False) -> None:
        write_error(self.h3, stream_id, error, self._service.date(), bodyless=bodyless)
        self._leave(stream_id)

    def _given_up(self, stream_id: int) -> None:
        """The peer takes back a request that it had not finished, or wants no (more) answer to."""
        opening = self._opening.pop(stream_id, None)
        request = self.requests.get(stream_id)
        if request is not None and not request.answered:
            self._spend_reset()
            request.reset(ErrorCode.H3_REQUEST_CANCELLED)
        elif opening is not None:
            self._spend_reset()

    def _spend_reset(self) -> None:
        """Opening requests and taking them back costs the peer little and us much (CVE-2023-44487)."""
        if not self._resets.take(time.monotonic()):
            self.quic.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase="too many requests taken back")

    def idle(self, frames: float) -> None:
        if not self._control.take(time.monotonic(), frames):
            self.quic.close(error_code=ErrorCode.H3_EXCESSIVE_LOAD, reason_phrase="too many frames that say nothing")

    def finished(self, request: Request) -> None:
        del self.requests[request.stream_id]
        self._leave(request.stream_id)
        self.wake()

    def _leave(self, stream_id: int) -> None:
        self._leaving.add(stream_id)
        self._idle_since = time.monotonic()

    # ---- the connection's life

    def flushed(self) -> None:
        for request in list(self.blocked):
            request.flushed()
        if self._closes_at is not None and not self.requests and not self._is_leaving() and not self.quic.ended:
            self.quic.close(error_code=ErrorCode.H3_NO_ERROR)
            self.wake()

    def _is_leaving(self) -> bool:
        """Looked at when it matters, and in every sweep: after each datagram it would be the most that we do there."""
        self._leaving = {stream_id for stream_id in self._leaving if not self.quic.delivered(stream_id)}
        return bool(self._leaving)

    def over(self) -> None:
        _log.debug("HTTP/3 connection with %s ended: %s", self.host, self.quic.end_reason)
        error = cause(self.quic.ending)
        for request in list(self.requests.values()):
            request.cut(error)

    def sweep(self, now: float) -> None:
        for stream_id, since in list(self._opening.items()):
            if now - since > self._service.limits.head_s:
                del self._opening[stream_id]
                self.h3.abort(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
                self.wake()
        for request in list(self.requests.values()):
            request.sweep(now)
        if self._draining_since is not None and now - self._draining_since > self._service.limits.late_request_s:
            self._say_last()  # no sign of it that the warning has arrived
            if now - self.heard > _PATIENCE * self._service.limits.late_request_s:
                self._leaving.clear()  # libcurl, between two requests, does not even acknowledge the last answer
                self.wake()
        leaving = self._is_leaving()
        if self.requests:
            self._ping(now)
        else:
            self._sweep_idle(now - self._idle_since, leaving)

    def _sweep_idle(self, idle_s: float, leaving: bool) -> None:
        limits = self._service.limits
        if leaving:
            if idle_s > limits.stalled_write_s:
                self.quic.close(error_code=ErrorCode.H3_NO_ERROR, reason_phrase="answers are not taken")
                self.wake()
        elif not self._opening and idle_s > (limits.keep_alive_s if self._next_stream else limits.first_byte_s):
            self.drain()

    def drain(self) -> None:
        """GOAWAY in two steps (RFC 9114 section 5.2): first a warning, then, once it has arrived, the last stream. A
        client that does not say so in `late_request_s`, one that is gone or never ended its handshake, is not waited
        for; nor is one that does not acknowledge its last answer in three times as long."""
        if self._draining_since is not None:
            return
        self._draining_since = time.monotonic()
        if self._h3 is None:
            self.quic.close(error_code=ErrorCode.H3_NO_ERROR)
        else:
            self._h3.goaway(_ALL_STREAMS)
            self.quic.send_ping(_DRAIN)
        self.wake()

    def _say_last(self) -> None:
        """Requests that come from now on are not served, and after the last answer the connection is closed."""
        if self._closes_at is None and self._h3 is not None:
            self._closes_at = self._next_stream
            self._h3.goaway(self._closes_at)
            self.wake()

    def _ping(self, now: float) -> None:
        if self._pinged is not None:
            if now - self._pinged > self._service.limits.stalled_write_s:
                self.quic.close(error_code=ErrorCode.H3_NO_ERROR, reason_phrase="no sign of life")
                self.wake()
        elif now - self._heard >= min(PING_S, self.quic.idle_timeout / 3):
            self._pinged = now
            self.quic.send_ping(_KEEP_ALIVE)
            self.wake()

    def _pong(self, uid: int) -> None:
        if uid == _DRAIN:
            self._say_last()
        else:
            self._pinged, self._heard = None, time.monotonic()
