"""A raw TCP server whose every connection runs a script: what no well-behaved HTTP server would ever send."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

from edgeproxy.upstream.h1 import Pool, PoolLimits, Response
from edgeproxy.upstream.origin import Origin

FAST = PoolLimits(sweep_s=0.01)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Peer:
    """The server's side of one connection."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        """0 for the first connection the server accepted."""
        self._reader = reader
        self._writer = writer

    async def request(self) -> tuple[bytes, bytes]:
        """Head and body of the next request. Raises EOFError when the client has gone."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line.partition(b":")[2])
        return head, await self._reader.readexactly(size)

    async def read(self) -> bytes:
        """Whatever comes next; b"" at the end."""
        return await self._reader.read(65536)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.read():
                pass


Script = Callable[[Peer], Awaitable[None]]


class RawServer:
    def __init__(self, script: Script) -> None:
        self.port = 0
        self.accepted = 0
        self._script = script
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, port: int, ssl_context: ssl.SSLContext | None) -> None:
        self._server = await asyncio.start_server(self.serve, "127.0.0.1", port, ssl=ssl_context)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """No new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self.accepted, reader, writer)
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(EOFError, ConnectionError, asyncio.CancelledError):
            await self._script(peer)
        self._tasks.discard(task)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def stop(self) -> None:
        self.refuse()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def raw_server(
    script: Script, *, port: int = 0, ssl_context: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    raw = RawServer(script)
    await raw.start(port, ssl_context)
    try:
        yield raw
    finally:
        await raw.stop()


def always(response: bytes) -> Script:
    """Answers every request of every connection with the same bytes."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(response)

    return script


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until the condition holds; for states that have no event of their own."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


def pool_to(port: int, limits: PoolLimits = FAST) -> Pool:
    return Pool(Origin("http", "127.0.0.1", port), name="near-1", limits=limits)


async def get(pool: Pool) -> Response:
    return await pool.request(b"GET", b"/")


async def body(response: Response) -> bytes:
    found = b""
    while data := await response.read():
        found += data
    return found
