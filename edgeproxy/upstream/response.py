"""The answer to one request: filled by its connection, read by whoever asked."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Literal, Protocol

Phase = Literal["connect", "send", "head", "body"]
Headers = list[tuple[bytes, bytes]]


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


class SilentNode(UpstreamError):
    """The node gives no sign of life, on this connection or any other."""


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


class Exchange(Protocol):
    """The connection, as its response sees it."""

    def drained(self, response: Response) -> None: ...
    def fail(self, cause: str) -> None: ...
    def tcp_rtt(self) -> float | None: ...


class Response:
    """The answer to a request that was sent. Once its `head()` has come `close()` it always; `read()` until `b""` for
    the body."""

    __slots__ = (
        "_connection",
        "_error",
        "_loop",
        "buffered",
        "chunks",
        "complete",
        "fields",
        "first_byte_at",
        "headers",
        "heard_at",
        "holding",
        "replaceable",
        "reused",
        "sent_at",
        "status",
        "waiter",
    )

    def __init__(self, connection: Exchange, reused: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Headers = []
        """Names in lower case, in order; hop-by-hop fields are taken out."""
        self.fields: dict[bytes, bytes] = {}
        """The first value of each."""
        self.reused = reused
        """False on a connection's first exchange: its time includes work that a warm one does not have."""
        self.sent_at = monotonic()
        """When the request was handed to the kernel. Event-loop time, but finer than uvloop's milliseconds."""
        self.first_byte_at = 0.0
        self.heard_at = 0.0
        """When the last bytes were here; who reads them comes later."""
        self._connection = connection
        self._loop = loop
        self.chunks: list[bytes] = []
        """Of the body, those that have come and were not read."""
        self.buffered = 0
        """Their bytes."""
        self.holding = False
        """So many that the connection reads no further before they are."""
        self.replaceable = True
        """Nothing of it has gone on to anybody: where its node falls silent, another can be asked instead."""
        self.complete = False
        """The body has come to its end, read or not."""
        self._error: UpstreamError | None = None
        self.waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Returns once status and headers are there. Raises UpstreamError. Cancelling the caller as with `read`."""
        try:
            while not self.status:
                if self._error is not None:
                    raise self._error
                self.waiter = self._loop.create_future()
                await self.waiter
        except asyncio.CancelledError:
            self.close()
            raise

    async def read(self) -> bytes:
        """The body bytes that have come since the last call, at least one; `b""` at the end. Raises UpstreamError.

        Cancelling the caller aborts the connection at once.
        """
        try:
            while not self.chunks:
                if self.complete:
                    return b""
                if self._error is not None:
                    raise self._error
                self.waiter = self._loop.create_future()
                await self.waiter
        except asyncio.CancelledError:
            self.close()
            raise
        return self._take()

    def whole(self) -> bytes | None:
        """The rest of the body, where all of it has come; else None."""
        return self._take() if self.complete else None

    def close(self) -> None:
        """Free to call twice. Before the end of the body this aborts the connection, so that the node stops working."""
        if not self.complete and self._error is None:
            self._connection.fail("closed before the end of the response")

    def tcp_rtt(self) -> float | None:
        """The kernel's smoothed round trip of this connection in seconds; None where it has none that is fresh."""
        return self._connection.tcp_rtt()

    def _take(self) -> bytes:
        data = b"".join(self.chunks)
        self.chunks.clear()
        self.buffered = 0
        if self.holding:
            self.holding = False
            self._connection.drained(self)
        return data

    # What the connection calls, once after each read of the socket, and at an end that no read brings.

    def wake(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def end(self, error: UpstreamError | None) -> None:
        self.complete = error is None
        self._error = error
        self.wake()
