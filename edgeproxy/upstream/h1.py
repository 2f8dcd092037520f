"""A node's pool of warm HTTP/1.1 connections: the hot path out.

HTTP/1.1 rather than h2, because closing the connection is the one cancel that every server understands. The most
recently used connection is taken first, so the pool shrinks to what the load needs; above `connections`, requests wait
in line.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from time import monotonic

from edgeproxy.upstream.connection import HOP_BY_HOP, Connection
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.response import Response, ResponseLimits, SilentNode, StaleConnection, UpstreamError

__all__ = ["Pool", "PoolLimits", "Response", "SilentNode", "UpstreamError"]

_NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
"""The pool writes its own framing and host; `expect` would only add a round trip."""
_CHANGES_MEANING = "a header, method or target holds a character that would change the request's meaning"


@dataclass(frozen=True, slots=True)
class PoolLimits:
    connections: int = 1024
    waiting: int = 1024
    """Requests in line for a connection; one more is refused."""
    wait_s: float = 10.0
    connect_s: float = 5.0
    """TCP and TLS handshakes together."""
    idle_s: float = 60.0
    sweep_s: float = 1.0
    """Grain of all deadlines below and of idle expiry."""
    response: ResponseLimits = field(default_factory=ResponseLimits)


class Pool:
    """All connections to one node. Made and used on one event loop."""

    def __init__(
        self,
        origin: Origin,
        *,
        name: str | None = None,
        limits: PoolLimits | None = None,
        ssl_context: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        """`name` stands in errors. For https: `ssl_context` defaults to the system's trust, `server_name`, which the
        certificate must carry, to the origin's host."""
        self.origin = origin
        self.name = name or str(origin)
        self._limits = limits or PoolLimits()
        self._ssl = (ssl_context or ssl.create_default_context()) if origin.scheme == "https" else None
        self._server_name = (server_name or origin.host) if self._ssl is not None else None
        self._host = origin.authority.encode("ascii")
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._promised = 0
        """Places given to those in line who have not begun to connect."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.heard_at = -inf
        """When the node was heard last, on whatever connection."""

    @property
    def idle(self) -> int:
        return len(self._idle)

    @property
    def busy(self) -> int:
        """Exchanges under way and connections being opened."""
        return len(self._connections) - len(self._idle)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """A request would have to stand in line for a connection."""
        return not self._idle and self._full()

    async def request(
        self,
        method: bytes,
        target: bytes,
        headers: Collection[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        at_once: bool = False,
    ) -> Response:
        """Sends a request and returns once the response's head is there; 1xx responses are skipped.

        `headers`: names in lower case; hop-by-hop fields, `host`, `content-length` and `expect` are left out. A pooled
        connection that dies without a byte of the response is replaced once. Raises UpstreamError, and ValueError on a
        head that cannot be written. Cancelling the caller aborts the connection at once.

        `at_once`: rather one connection too many than to stand in line. For questions whether the node lives, of which
        there are few at a time.
        """
        message = self._head(method, target, headers, body) + body
        head_only = method == b"HEAD"
        connection = self._warmest() or await (self._connect() if at_once else self._open_or_wait())
        try:
            response = connection.send(message, head_only=head_only)
            await response.head()
        except StaleConnection:
            # Its neighbours have probably been closed with it: only a new one is worth a second try.
            connection = await (self._connect() if at_once else self._open_or_wait())
            response = connection.send(message, head_only=head_only)
            await response.head()
        return response

    async def warm(self, count: int) -> None:
        """Opens connections ahead until `count` are idle or the limit is reached. Raises UpstreamError."""
        for _ in range(count - len(self._idle)):
            if self._full():
                return
            self._rest(await self._connect(), 0)  # below those that have served: these are a reserve

    def silent_s(self, now: float) -> float:
        """For how long an exchange that could be tried elsewhere has waited without a byte from the node on any
        connection; 0 where none waits."""
        if now <= self.heard_at:
            return 0.0
        waiting = [since for connection in self._connections if (since := connection.waiting_since) is not None]
        return now - max(self.heard_at, min(waiting)) if waiting else 0.0

    def give_back(self, cause: str) -> int:
        """Ends what can still be tried elsewhere with a SilentNode: the exchanges of which nothing has gone on yet, and
        the line for connections. Returns how many these were."""
        given = 0
        while (waiter := self._next_in_line()) is not None:
            waiter.set_exception(SilentNode("connect", self.name, cause))
            given += 1
        for connection in list(self._connections):
            if connection.waiting_since is not None:
                connection.fail(cause, SilentNode)
                given += 1
        return given

    def close(self) -> None:
        """Aborts everything at once; requests under way and in line raise UpstreamError."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while (waiter := self._next_in_line()) is not None:
            waiter.set_exception(self._error("the pool was closed"))
        for connection in list(self._connections):
            connection.fail("the pool was closed")

    # What connections report.

    def released(self, connection: Connection) -> None:
        if len(self._connections) > self._limits.connections:
            connection.abort()  # as many as were opened at once
        else:
            self._rest(connection, len(self._idle))

    def lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._promise()

    # Parts.

    def _head(self, method: bytes, target: bytes, headers: Collection[tuple[bytes, bytes]], body: bytes) -> bytes:
        lines = [_first_lines(method, target, self._host)]
        if not _NOT_SENT.isdisjoint(dict(headers)):
            headers = [field for field in headers if field[0] not in _NOT_SENT]
        lines += map(b": ".join, headers)
        if body or method not in (b"GET", b"HEAD"):
            lines.append(b"content-length: %d" % len(body))
        breaks = 2 * (len(lines) + 2)
        lines += (b"", b"")
        head = b"\r\n".join(lines)
        # One look at the whole instead of one at each field: more line ends than lines is an injected line.
        if len(head) - len(head.translate(None, b"\r\n\0")) != breaks:
            raise ValueError(_CHANGES_MEANING)
        return head

    def _warmest(self) -> Connection | None:
        now = monotonic()
        while self._idle:
            connection = self._idle.pop()
            if connection.deadline > now:
                return connection
            connection.abort()
        return None

    def _full(self) -> bool:
        return len(self._connections) + self._promised >= self._limits.connections

    async def _open_or_wait(self) -> Connection:
        if self._full() and self._idle:
            self._idle[0].abort()  # the coldest makes room for a new one
        if not self._full():
            return await self._connect()
        return await self._wait_in_line() or await self._connect_as_promised()

    async def _connect(self) -> Connection:
        if self._closed:
            raise self._error("the pool was closed")
        loop = asyncio.get_running_loop()
        connection = Connection(self.name, self._limits.response, self)
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(self._limits.sweep_s, self._sweep)
        try:
            async with asyncio.timeout(self._limits.connect_s) as limit:
                await loop.create_connection(
                    lambda: connection,
                    self.origin.host,
                    self.origin.port,
                    ssl=self._ssl,
                    server_hostname=self._server_name,
                )
        except BaseException as error:
            connection.abort()
            if limit.expired():
                raise self._error(f"{self.origin}: no connection within {self._limits.connect_s:g} s") from error
            if isinstance(error, OSError):
                raise self._error(f"{self.origin}: {_reason(error)}") from error
            raise
        return connection

    async def _connect_as_promised(self) -> Connection:
        self._promised -= 1
        return await self._connect()

    async def _wait_in_line(self) -> Connection | None:
        """First come, first served. None is the promise of a place in which to open a connection."""
        if len(self._waiting) >= self._limits.waiting:
            raise self._error(
                f"all {self._limits.connections} connections are busy and {len(self._waiting)} requests wait"
            )
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout(self._limits.wait_s) as limit:
                return await waiter
        except BaseException as error:
            self._leave_line(waiter)
            if limit.expired():
                raise self._error(f"no connection became free within {self._limits.wait_s:g} s") from error
            raise

    def _leave_line(self, waiter: asyncio.Future[Connection | None]) -> None:
        """The one who waited is gone: what it was given in the same moment goes to the next."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            connection = waiter.result()
            if connection is not None:
                self.released(connection)
            else:
                self._promised -= 1
                self._promise()

    def _promise(self) -> None:
        if not self._full() and (waiter := self._next_in_line()) is not None:
            self._promised += 1
            waiter.set_result(None)

    def _next_in_line(self) -> asyncio.Future[Connection | None] | None:
        """The first who has not been cancelled in this very turn of the event loop."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                return waiter
        return None

    def _rest(self, connection: Connection, place: int) -> None:
        """To whoever waits, else among the idle, of which the last is taken first."""
        connection.pooled = True
        if self._waiting and (waiter := self._next_in_line()) is not None:
            waiter.set_result(connection)
            return
        connection.deadline = monotonic() + min(self._limits.idle_s, connection.idle_limit)
        self._idle.insert(place, connection)

    def _sweep(self) -> None:
        """Every `sweep_s`: one pass over all deadlines instead of a timer for each request."""
        now = monotonic()
        for connection in list(self._connections):
            if connection.deadline <= now and not connection.paused:
                connection.expire()
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self._limits.sweep_s, self._sweep) if self._connections else None

    def _error(self, cause: str) -> UpstreamError:
        return UpstreamError("connect", self.name, cause)


@lru_cache(maxsize=256)
def _first_lines(method: bytes, target: bytes, host: bytes) -> bytes:
    """Raises ValueError."""
    if len((method + b" " + target).split(b" ")) != 2:
        raise ValueError(_CHANGES_MEANING)
    return b"%b %b HTTP/1.1\r\nhost: %b" % (method, target, host)


def _reason(error: OSError) -> str:
    """asyncio words a refused connection as "Connect call failed"; the system's own words are the known ones."""
    if error.errno is None or error.errno <= 0 or isinstance(error, ssl.SSLError):
        return str(error)
    return os.strerror(error.errno)
