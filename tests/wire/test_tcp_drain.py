"""Going down: what has begun may end, what is idle is closed, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import END, OK, Watcher, answer, echo, piece
from tests.wire.conftest import GET, Serve, until_connections
from tests.wire.raw import PATIENCE_S, RawClient


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
