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
import struct
from dataclasses import dataclass
from time import monotonic
from typing import Literal, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

Phase = Literal["connect", "send", "head", "body"]
Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"te", b"trailer")
)
"""RFC 9110 section 7.6.1: these speak of one connection and are never passed on."""

# struct tcp_info: u32 fields follow eight bytes of flags.
_TCP_INFO_BYTES = 256
_LAST_ACK_AT, _RTT_AT = 56, 68
_MAX_ACK_AGE_MS = 30_000


class UpstreamError(Exception):
    """A node failed us. `phase` tells how far the request came; the message names the node and the cause."""

    def __init__(self, phase: Phase, node: str, cause: str) -> None:
        self.phase: Phase = phase
        self.node = node
        self.cause = cause
        self.message = f"node {node} failed ({phase}): {cause}"
        super().__init__(self.message)


class StaleConnection(UpstreamError):
    """A connection from the pool died without one byte of a response: most likely it was closed while idle."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """What a node can make the proxy hold."""

    head_bytes: int = 32 * 1024
    """Of all header fields of a response, interim responses and trailers included."""
    headers: int = 100
    buffer_bytes: int = 256 * 1024
    """Unread body at which the socket is paused; what one read of the socket brings may come on top."""
    first_byte_s: float = 120.0
    stall_s: float = 60.0
    """Without a byte while the reader is willing."""


class Owner(Protocol):
    """The pool, as a connection sees it."""

    def released(self, connection: Connection) -> None: ...
    def lost(self, connection: Connection) -> None: ...


class Response:
    """An answer whose head has come. `close()` it always; `read()` until `b""` for the body."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_complete",
        "_connection",
        "_error",
        "_waiter",
        "first_byte_at",
        "headers",
        "reused",
        "sent_at",
        "status",
    )

    def __init__(self, connection: Connection, reused: bool) -> None:
        self.status = 0
        self.headers: Headers = []
        """Names in lower case, in order; hop-by-hop fields are taken out."""
        self.reused = reused
        """False on a connection's first exchange: its time includes work that a warm one does not have."""
        self.sent_at = monotonic()
        """When the request was handed to the kernel. Event-loop time, but finer than uvloop's milliseconds."""
        self.first_byte_at = 0.0
        self._connection = connection
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._complete = False
        self._error: UpstreamError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """The body bytes that have come since the last call, at least one; `b""` at the end. Raises UpstreamError.

        Cancelling the caller aborts the connection at once.
        """
        while not self._chunks:
            if self._complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        self._connection.drained(self)
        return data

    def close(self) -> None:
        """Free to call twice. Before the end of the body this aborts the connection, so that the node stops working."""
        if not self._complete and self._error is None:
            self._connection.fail("closed before the end of the response")

    def tcp_rtt(self) -> float | None:
        """The kernel's smoothed round trip of this connection in seconds; None where it has none that is fresh."""
        return self._connection.tcp_rtt()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise

    async def _head(self) -> None:
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _push(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered += len(data)
        self._wake()

    def _end(self, error: UpstreamError | None) -> None:
        self._complete = error is None
        self._error = error
        self._wake()


class Connection(asyncio.Protocol):
    """Made by a pool, one exchange at a time. `deadline`: when the pool's sweep calls `expire()`."""

    __slots__ = (
        "_closed",
        "_delimited",
        "_field_bytes",
        "_fields",
        "_head_only",
        "_interim",
        "_keep_alive",
        "_limits",
        "_listed",
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
        self._begin(head_only=False)

    def _begin(self, *, head_only: bool) -> None:
        self._head_only = head_only
        self._interim = False
        self._delimited = False
        self._keep_alive = False
        self._fields = 0
        self._field_bytes = 0
        self._overhead = 0
        self._listed: tuple[bytes, ...] = ()

    # What the pool and the response call.

    async def exchange(self, request: bytes, *, head_only: bool) -> Response:
        """Sends a whole request and waits for the head of its response. Raises UpstreamError."""
        if self._transport is None or self._closed or self._transport.is_closing():
            raise StaleConnection("send", self._name, "the connection was closed while idle")
        self._begin(head_only=head_only)
        response = self._response = Response(self, self._served > 0)
        self._served += 1
        self._transport.write(request)
        self.deadline = response.sent_at + self._limits.first_byte_s
        await response._head()
        return response

    @property
    def busy(self) -> bool:
        return self._response is not None

    @property
    def paused(self) -> bool:
        return self._paused

    def drained(self, response: Response) -> None:
        """The reader has taken all that was buffered."""
        if self._paused and response is self._response:
            self._resume()

    def fail(self, cause: str) -> None:
        """Ends the exchange with an error and the connection with it."""
        self._end_exchange(UpstreamError(self._phase(), self._name, cause))
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
        found = None if self._closed or self._transport is None else self._transport.get_extra_info("socket")
        return None if found is None else _tcp_rtt(found)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
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
        response, transport = self._response, self._transport
        if response is None or transport is None:
            self.abort()  # nobody asked: a server's farewell, or worse
            return
        now = monotonic()
        if not response.first_byte_at:
            response.first_byte_at = now
        self.deadline = now + self._limits.stall_s
        self._overhead += len(data)
        cause = self._parse(data)
        if response._complete:
            self._finish(response)
        elif cause is not None:
            self.fail(cause)
        elif response._buffered > self._limits.buffer_bytes and not self._paused:
            self._paused = True
            transport.pause_reading()

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
        if self._response is None or self._response._complete:
            raise ValueError("a response that nobody asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        response = self._response
        assert response is not None
        self._fields += 1
        self._field_bytes += len(name) + len(value)
        if self._fields > self._limits.headers or self._field_bytes > self._limits.head_bytes:
            raise ValueError(
                f"more than {self._limits.headers} header fields or {self._limits.head_bytes} bytes of them"
            )
        if response.status:
            return  # a trailer: nothing that the proxy passes on
        name = name.lower()
        if name in HOP_BY_HOP:
            self._hop(name, value)
            return
        if name == b"content-length":
            self._delimited = True
        response.headers.append((name, value))

    def on_headers_complete(self) -> None:
        response = self._response
        assert response is not None
        status = self._parser.get_status_code()
        if status < 200:
            self._skip_interim(response, status)
            return
        for name in self._listed:
            response.headers = [field for field in response.headers if field[0] != name]
        response.status = status
        if self._head_only:
            self._keep_alive = self._parser.should_keep_alive()
            response._end(None)
        else:
            response._wake()

    def on_body(self, data: bytes) -> None:
        response = self._response
        if response is None or response._complete:
            raise ValueError("a body where there can be none")
        self._overhead = 0
        response._push(data)

    def on_message_complete(self) -> None:
        response = self._response
        if self._interim:
            self._interim = False
        elif response is not None and not response._complete:
            self._keep_alive = self._parser.should_keep_alive()
            response._end(None)

    # Parts.

    def _parse(self, data: bytes) -> str | None:
        """The cause for which the exchange must fail; also set, but without consequence, after a complete response."""
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            return "switched protocols without being asked"
        except HttpParserError as error:
            self._keep_alive = False
            return f"sent what is not a response: {error.__context__ or error}"
        if self._overhead > 2 * self._limits.head_bytes:
            return f"sent {self._overhead} bytes without any body among them"
        return None

    def _skip_interim(self, response: Response, status: int) -> None:
        if status == 101:
            raise ValueError("101 Switching Protocols without being asked")
        self._interim = True
        self._delimited = False
        self._listed = ()
        response.headers.clear()

    def _hop(self, name: bytes, value: bytes) -> None:
        if name == b"transfer-encoding":
            # llhttp accepts any list that ends in chunked and ignores the rest; we ask for no coding (RFC 9112 6.1).
            if value.strip().lower() != b"chunked":
                raise ValueError("a transfer coding other than chunked")
            self._delimited = True
        elif name == b"connection":
            tokens = (token.strip().lower() for token in value.split(b","))
            self._listed += tuple(token for token in tokens if token not in (b"close", b"keep-alive", b""))
        elif name == b"keep-alive":
            self.idle_limit = _keep_alive_timeout(value, self.idle_limit)

    def _finish(self, response: Response) -> None:
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
        if response is not None and not response._complete:
            response._end(error)

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


def _tcp_rtt(sock: socket.socket) -> float | None:
    if not hasattr(socket, "TCP_INFO"):
        return None
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(info) < _RTT_AT + 4:
        return None
    (ack_age_ms,) = struct.unpack_from("=I", info, _LAST_ACK_AT)
    (rtt_us,) = struct.unpack_from("=I", info, _RTT_AT)
    return rtt_us / 1e6 if rtt_us and ack_age_ms <= _MAX_ACK_AGE_MS else None
