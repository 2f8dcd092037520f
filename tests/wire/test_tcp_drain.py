"""Going down: what has begun may end, what is idle is closed, and nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import MIB, Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import END, OK, Watcher, answer, echo, piece
from tests.wire.conftest import GET, Serve, until_connections
from tests.wire.raw import PATIENCE_S, RawClient

T = TypeVar("T")


async def test_drain_closes_idle_connections_and_lets_answers_end(serve: Serve) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            running.set()
            await go.wait()
        await answer(send, b"whole")

    running = asyncio.Event()
    edge = await serve(app)
    fresh, idle, busy = await edge.connect(), await edge.connect(), await edge.connect()
    await idle.send(GET)
    await idle.answer()
    await busy.send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        await running.wait()
    port = edge.port
    drain = asyncio.create_task(edge.listener.drain(PATIENCE_S))
    assert await idle.closed()
    edge.later(Limits().late_request_s + 0.1)
    assert await fresh.closed()
    with pytest.raises(OSError):
        await RawClient.connect(port)
    go.set()
    reply = await busy.answer()
    assert (reply.body, reply["connection"]) == (b"whole", "close")
    assert await busy.closed()
    await drain
    assert edge.listener.connections == 0


async def test_drain_serves_a_request_that_has_begun_to_arrive(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    await client.send(b"POST /half HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert (await client.read_head())[0] == 100
    drain = asyncio.create_task(edge.listener.drain(PATIENCE_S))
    await asyncio.sleep(0)
    await client.send(b"abc")
    reply = await client.answer()
    assert (reply.body, reply["connection"]) == (b"POST /half abc", "close")
    await drain


async def test_drain_waits_for_work_after_the_answer(serve: Serve) -> None:
    go, accounted = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"")
        await go.wait()
        accounted.set()

    edge = await serve(app)
    client = await edge.connect()
    await client.send(GET)
    await client.answer()
    drain = asyncio.create_task(edge.listener.drain(PATIENCE_S))
    assert await client.closed()
    assert not drain.done()
    go.set()
    await drain
    assert accounted.is_set()


async def test_drain_cuts_off_what_is_left_and_leaves_no_task(serve: Serve) -> None:
    async def stubborn(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b"x"))
        running.set()
        await asyncio.Event().wait()
        await send(END)

    running = asyncio.Event()
    before = asyncio.all_tasks()
    edge = await serve(stubborn)
    client = await edge.connect()
    await client.send(GET)
    async with asyncio.timeout(PATIENCE_S):
        await running.wait()
        await edge.listener.drain(0.01)
    assert edge.listener.connections == 0
    assert asyncio.all_tasks() == before
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.answer()


async def test_drain_serves_those_who_have_just_come(serve: Serve) -> None:
    edge = await serve(echo)
    fresh = await edge.connect()
    await until_connections(edge, 1)
    drain = asyncio.create_task(edge.listener.drain(PATIENCE_S))
    await asyncio.sleep(0)
    await fresh.send(GET)
    reply = await fresh.answer()
    assert (reply.status, reply["connection"]) == (200, "close")
    await drain


async def test_drain_gives_up_handshakes(serve_tls: Serve) -> None:
    edge = await serve_tls(echo, Limits(late_request_s=0.05))
    _, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    await until_connections(edge, 1)
    async with asyncio.timeout(PATIENCE_S):
        await edge.listener.drain(PATIENCE_S)
    assert edge.listener.connections == 0
    writer.transport.abort()


async def test_close_drops_everything_at_once(serve: Serve) -> None:
    watcher = Watcher()
    edge = await serve(watcher)
    client = await edge.connect()
    await client.send(GET)
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
    edge.listener.close()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.answer()
    await until_connections(edge, 0)


class Mute:
    """A client over TLS that says no more than it is told to: asyncio's own answers a close by itself."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._loop, self._sock = asyncio.get_running_loop(), sock
        self._from, self._to = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._from, self._to, server_hostname="localhost")

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext) -> Mute:
        sock = socket.socket()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        client = cls(sock, context)
        await client._done(client._tls.do_handshake)
        return client

    async def send(self, data: bytes) -> None:
        self._tls.write(data)
        await self._loop.sock_sendall(self._sock, self._to.read())

    async def read(self) -> bytes:
        """Empty once the server has said that it is done."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self._done(self._tls.read)
            except ssl.SSLZeroReturnError:
                return b""

    def close(self) -> None:
        self._sock.close()

    async def _done(self, act: Callable[[], T]) -> T:
        """Raises SSLEOFError where the connection ends without close_notify."""
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                await self._loop.sock_sendall(self._sock, self._to.read())
                if data := await self._loop.sock_recv(self._sock, 65536):
                    self._from.write(data)
                else:
                    self._from.write_eof()
            finally:
                await self._loop.sock_sendall(self._sock, self._to.read())


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
async def test_drain_says_goodbye_to_idle_tls_connections_and_waits_for_no_answer(
    protocol: str, serve_tls: Serve
) -> None:
    edge = await serve_tls(echo, Limits(close_s=1000.0))
    context = edge.client_context(protocol)
    assert context is not None
    client = await Mute.connect(edge.port, context)
    if protocol == "h2":
        await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"))
    else:
        await client.send(GET)
    assert await client.read()
    async with asyncio.timeout(PATIENCE_S):
        await edge.listener.drain(1000.0)
    assert edge.listener.connections == 0
    while await client.read():
        pass
    client.close()


async def test_goodbye_does_not_cut_off_what_an_idle_client_has_yet_to_read(serve_tls: Serve) -> None:
    size = 8 * MIB

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, bytes(size))

    edge = await serve_tls(app, Limits(close_s=1000.0, unsent_bytes=2 * size))
    context = edge.client_context("http/1.1")
    assert context is not None
    client = await Mute.connect(edge.port, context)
    await client.send(GET)
    got = len(await client.read())
    drain = asyncio.create_task(edge.listener.drain(1000.0))
    while data := await client.read():
        got += len(data)
    assert got > size
    async with asyncio.timeout(PATIENCE_S):
        await drain
    client.close()
