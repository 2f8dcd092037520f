"""One HTTP/1.1 connection to a node: requests out, responses in, no task and no event object of its own.

The parser's callbacks fill the Response of the exchange that is under way; whoever awaits it is woken through a future
that exists only while somebody waits. A connection goes back to its pool the moment the last byte of a response is
parsed, so a reader that lingers over the buffered rest holds nothing up.

Trust ends at the socket: a response that is over-long, framed in two ways, or followed by bytes that nobody asked for
costs the connection, never a neighbour's answer (response splitting, RFC 9112 section 11.1).
"""

from __future__ import annotations

import asyncio
import socket
from time import monotonic
from typing import Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from edgeproxy.upstream.response import Headers, Phase, Response, ResponseLimits, StaleConnection, UpstreamError
from edgeproxy.wire.rtt import transport_tcp_info

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer")
)
"""RFC 9110 section 7.6.1: these speak of one connection and are never passed on."""

_MAX_ACK_AGE_S = 30.0
"""Older than that, the kernel's round trip says nothing of now."""


class Owner(Protocol):
    """The pool, as a connection sees it."""

    heard_at: float
    """When a byte came over any of its connections."""

    def released(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    """Made by a pool, one exchange at a time. `deadline`: when the pool's sweep calls `expire()`."""

    __slots__ = (
        "_closed",
        "_delimited",
        "_field_bytes",
        "_fields",
        "_head_only",
        "_headers",
        "_interim",
        "_keep_alive",
        "_limits",
        "_loop",
        "_name",
        "_overhead",
        "_owner",
        "_parser",
        "_paused",
        "_response",
        "_served",
        "_transport",
        "_unsent",
        "deadline",
        "idle_limit",
        "pooled",
    )

    def __init__(self, name: str, limits: ResponseLimits, owner: Owner) -> None:
        self.deadline = float("inf")
        self.idle_limit = float("inf")
        """Seconds of idleness after which the peer said it would close (`keep-alive: timeout=`)."""
        self.pooled = False
        """It has lain in a pool, where the peer may have closed it."""
        self._name = name
        self._limits = limits
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser = HttpResponseParser(self)
        self._response: Response | None = None
        self._served = 0
        self._closed = False
        self._paused = False
        self._unsent = False
        self._headers: Headers = []
        """Of the head, or the trailers, that is being read."""
        self._interim = False
        self._delimited = False
        self._keep_alive = False
        """Known, as what is above it, once a response has been parsed so far."""
        self._head_only = False
        self._fields = 0
        self._field_bytes = 0
        self._overhead = 0
        """Bytes read since the last of a body."""

    # What the pool and the response call.

    def send(self, request: bytes, *, head_only: bool) -> Response:
        """Sends a whole request. `head()` of what is returned waits for the answer. Raises StaleConnection."""
        if self._transport is None or self._closed or self._transport.is_closing():
            raise StaleConnection("send", self._name, "the connection was closed while idle")
        self._head_only = head_only
        self._fields = self._field_bytes = self._overhead = 0
        response = self._response = Response(self, self._served > 0, self._loop)
        self._served += 1
        self._transport.write(request)
        self.deadline = response.sent_at + self._limits.first_byte_s
        return response

    @property
    def busy(self) -> bool:
        return self._response is not None

    @property
    def waiting_since(self) -> float | None:
        """When what could still be asked of another node was sent; None where there is nothing of that kind."""
        response = self._response
        return response.sent_at if response is not None and response.replaceable else None

    @property
    def paused(self) -> bool:
        return self._paused

    def drained(self, response: Response) -> None:
        """The reader has taken all that was buffered."""
        if self._paused and response is self._response:
            self._resume()

    def fail(self, cause: str, kind: type[UpstreamError] = UpstreamError) -> None:
        """Ends the exchange with an error of that kind and the connection with it."""
        self._end_exchange(kind(self._phase(), self._name, cause))
        self.abort()

    def expire(self) -> None:
        """The deadline has passed."""
        response = self._response
        if response is None:
            self.abort()
        else:
            limit = self._limits.stall_s if response.first_byte_at else self._limits.first_byte_s
            self.fail(f"sent nothing for {limit:g} s")

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            if self._transport is not None:
                self._transport.abort()
            self._owner.lost(self)

    def tcp_rtt(self) -> float | None:
        info = None if self._transport is None else transport_tcp_info(self._transport)
        return info.rtt if info is not None and info.last_ack_recv <= _MAX_ACK_AGE_S else None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        if self._closed:
            self._transport.abort()
            return
        # So that pause_writing means "not all of it is with the kernel", and uvloop writes at once. Not 0: to asyncio's
        # TLS an empty buffer would be too full.
        self._transport.set_write_buffer_limits(high=1, low=0)
        found = transport.get_extra_info("socket")
        if found is not None:
            _tune(found)

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None:
            self.abort()  # nobody asked: a server's farewell, or worse
            return
        limits = self._limits
        now = monotonic()
        if not response.first_byte_at:
            response.first_byte_at = now
        response.heard_at = self._owner.heard_at = now
        self.deadline = now + limits.stall_s
        self._overhead += len(data)
        cause = None
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            cause = "switched protocols without being asked"
        except HttpParserError as error:
            self._keep_alive = False
            cause = f"sent what is not a response: {error.__context__ or error}"
        if response.waiter is not None:
            response.wake()
        if response.complete:
            self._finish()
        elif cause is not None:
            self.fail(cause)
        elif self._overhead > 2 * limits.head_bytes:
            self.fail(f"sent {self._overhead} bytes without any body among them")
        elif self._headers and self._fields + len(self._headers) > limits.headers:
            self.fail(_too_many(limits))
        elif response.buffered > limits.buffer_bytes and not self._paused:
            self._paused = response.holding = True
            assert self._transport is not None
            self._transport.pause_reading()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        response = self._response
        if response is not None:
            if exc is None and response.status and not self._delimited:
                self._end_exchange(None)
            else:
                self._end_exchange(self._loss(response, exc))
        if not self._closed:
            self._closed = True
            self._owner.lost(self)
        self._transport = None

    # What the parser calls. An exception thrown here ends the parse; httptools keeps it as __context__.

    def on_message_begin(self) -> None:
        if self._response is None or self._response.complete:
            raise ValueError("a response that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        headers, self._headers = self._headers, []
        self._fields += len(headers)
        if self._fields > self._limits.headers or self._overhead > self._limits.head_bytes:
            self._check_size(headers)
        status = self._parser.get_status_code()
        if status < 200:
            self._skip_interim(status)
            return
        fields = dict(reversed(headers))
        self._delimited = b"content-length" in fields
        if not HOP_BY_HOP.isdisjoint(fields):
            headers = self._end_to_end(headers)
            fields = dict(reversed(headers))
        response.headers, response.fields, response.status = headers, fields, status
        if self._head_only:
            self._keep_alive = self._parser.should_keep_alive()
            response.complete = True

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None or response.complete:
            raise ValueError("a body where there can be none")
        self._overhead = 0
        response.chunks.append(data)
        response.buffered += len(data)

    def on_message_complete(self) -> None:
        response = self._response
        if self._headers:  # trailers: nothing that the proxy passes on
            self._fields += len(self._headers)
            self._check_size(self._headers)
            self._headers = []
        if self._interim:
            self._interim = False
        elif response is not None and not response.complete:
            self._keep_alive = self._parser.should_keep_alive()
            response.complete = True

    # Parts.

    def _check_size(self, headers: Headers) -> None:
        """Fields of a head, and of an interim one, and trailers, count together. To be asked where what has been read
        since the last of the body, a bound on their bytes, is more than these may have. Raises ValueError."""
        self._field_bytes += sum([len(name) + len(value) for name, value in headers])
        if self._fields > self._limits.headers or self._field_bytes > self._limits.head_bytes:
            raise ValueError(_too_many(self._limits))

    def _skip_interim(self, status: int) -> None:
        if status == 101:
            raise ValueError("101 Switching Protocols without being asked")
        self._interim = True

    def _end_to_end(self, headers: Headers) -> Headers:
        """Those that do not speak of this connection alone, which are heeded here. Raises ValueError."""
        listed: set[bytes] = set()
        for name, value in headers:
            if name == b"transfer-encoding":
                # llhttp accepts any list that ends in chunked and ignores the rest; we ask for none (RFC 9112 6.1).
                if value.strip().lower() != b"chunked":
                    raise ValueError("a transfer coding other than chunked")
                self._delimited = True
            elif name == b"connection":
                listed.update([token.strip().lower() for token in value.split(b",")])
            elif name == b"keep-alive":
                self.idle_limit = _keep_alive_timeout(value, self.idle_limit)
        return [field for field in headers if field[0] not in HOP_BY_HOP and field[0] not in listed]

    def _finish(self) -> None:
        """The response has been parsed to its end."""
        self._response = None
        if self._head_only:
            self._parser = HttpResponseParser(self)  # the old one still waits for the body that HEAD never brings
        if self._keep_alive and not self._unsent and not self._closed:
            if self._paused:
                self._resume()
            self._owner.released(self)
        else:
            self.abort()

    def _end_exchange(self, error: UpstreamError | None) -> None:
        response, self._response = self._response, None
        if response is not None and not response.complete:
            response.end(error)

    def _phase(self) -> Phase:
        if self._response is not None and self._response.status:
            return "body"
        return "send" if self._unsent else "head"

    def _loss(self, response: Response, exc: Exception | None) -> UpstreamError:
        phase = self._phase()
        how = "closed the connection" if exc is None else f"lost the connection: {exc or type(exc).__name__}"
        if self.pooled and not response.first_byte_at:
            return StaleConnection(phase, self._name, f"{how} without a byte of the response")
        return UpstreamError(phase, self._name, f"{how} {_PLACES[phase]}")

    def _resume(self) -> None:
        self._paused = False
        self.deadline = monotonic() + self._limits.stall_s
        if self._transport is not None and not self._closed:
            self._transport.resume_reading()


_PLACES: dict[Phase, str] = {
    "connect": "before it was open",
    "send": "before it had the whole request",
    "head": "before the end of the response head",
    "body": "before the end of the body",
}


def _too_many(limits: ResponseLimits) -> str:
    return f"more than {limits.headers} header fields or {limits.head_bytes} bytes of them"


def _keep_alive_timeout(value: bytes, known: float) -> float:
    """`timeout=5, max=100` -> seconds, less one for what is in flight when the peer closes."""
    for parameter in value.split(b","):
        name, _, number = parameter.partition(b"=")
        if name.strip().lower() == b"timeout" and number.strip().isdigit():
            return max(0.0, int(number) - 1.0)
    return known


def _tune(sock: socket.socket) -> None:
    """Small writes leave at once, and a peer that vanished without a word is noticed within ten seconds of a send."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000)
