"""A client that leaves is noticed at once, whatever stands between it and the application."""

from __future__ import annotations

import asyncio

import pytest

from edgeproxy.wire.ingress import Ingress, Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import Watcher, answer
from tests.wire.conftest import Serve
from tests.wire.raw import PATIENCE_S, RawClient

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def leave(client: RawClient, how: str) -> None:
    if how == "reset":
        client.reset()
    else:
        await client.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "in the answer"])
@pytest.mark.parametrize("pipelined", [0, 1, 3, 50], ids=lambda n: f"{n} pipelined")
async def test_a_disconnect_is_seen_behind_pipelined_requests(
    serve: Serve, how: str, streams: bool, pipelined: int
) -> None:
    watcher = Watcher(streams=streams)
    edge = await serve(watcher)
    client = await edge.connect()
    await client.send(GET * (1 + pipelined))
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
        await leave(client, how)
        await watcher.disconnected.wait()
        await watcher.send_raised.wait()
    assert watcher.calls == 1  # what was pipelined behind it never begins


async def test_a_half_closed_client_counts_as_gone(serve_plain: Serve) -> None:
    watcher = Watcher()
    edge = await serve_plain(watcher)
    client = await edge.connect()
    await client.send(GET)
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
        client.half_close()
        await watcher.send_raised.wait()


async def test_a_client_that_leaves_in_its_upload_is_noticed(serve: Serve) -> None:
    watcher = Watcher()
    seen = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        while message["type"] == "http.request":
            watcher.running.set()
            message = await receive()
        seen.set()

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
        await client.close()
        await seen.wait()


async def test_an_application_that_ignores_the_disconnect_is_cancelled(serve: Serve) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    edge = await serve(app, Limits(cancel_grace_s=0))
    client = await edge.connect()
    await client.send(GET)
    async with asyncio.timeout(PATIENCE_S):
        await running.wait()
        await client.close()
        await cancelled.wait()


@pytest.mark.parametrize("speaks", ["h1", "h2"])
async def test_the_end_of_an_answer_is_no_leaving(serve: Serve, speaks: str) -> None:
    seen: list[Ingress] = []
    left: list[Ingress] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        known = ingress(scope)
        assert known is not None
        assert known.protocol == speaks
        known.on_gone = lambda: left.append(known)
        seen.append(known)
        await answer(send, b"")

    edge = await serve(app)
    if speaks == "h1":
        client = await edge.connect()
        await client.send(GET)
        await client.answer()
        await client.close()
    else:
        h2 = await edge.connect_h2()
        await h2.answer(h2.request())
        await h2.close()
    async with asyncio.timeout(PATIENCE_S):
        while edge.listener.connections:  # noqa: ASYNC110 - a counter, not an event
            await asyncio.sleep(0.01)
    assert len(seen) == 1
    assert not left
