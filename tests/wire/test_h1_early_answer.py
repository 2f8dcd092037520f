"""An answer that comes before its request has ended reaches the client all the same."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import MIB, Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import answer, read_body
from tests.wire.conftest import Serve
from tests.wire.raw import PATIENCE_S


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, b"no", 403)


async def take(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    await answer(send, b"taken")


@pytest.mark.parametrize("size", [100, 512 * 1024])
async def test_an_early_answer_survives_the_rest_of_the_body(serve: Serve, size: int) -> None:
    edge = await serve(refuse)
    client = await edge.connect()
    client.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
    await client.send(bytes(size // 2))
    await asyncio.sleep(0)
    await client.send(bytes(size - size // 2))
    reply = await client.answer()
    assert (reply.status, reply.body) == (403, b"no")


async def test_a_body_that_turns_out_too_large_is_answered_413_while_it_is_sent(serve: Serve) -> None:
    edge = await serve(take, Limits(body_bytes=100_000))
    client = await edge.connect()
    client.write(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(10):
        await client.send(b"10000\r\n" + bytes(0x10000) + b"\r\n")
    reply = await client.answer()
    assert (reply.status, reply["connection"], reply.error()["code"]) == (413, "close", "request_too_large")


async def test_an_announced_length_beyond_the_limit_is_refused_before_the_application_runs(serve: Serve) -> None:
    ran = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal ran
        ran = True

    edge = await serve(app, Limits(body_bytes=100))
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n")
    assert (await client.answer()).status == 413
    assert not ran


async def test_lingering_ends_with_its_bytes(serve: Serve) -> None:
    edge = await serve(refuse, Limits(linger_bytes=MIB, body_bytes=100 * MIB))
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % (100 * MIB))
    assert (await client.answer()).status == 403
    sent = 0
    async with asyncio.timeout(PATIENCE_S):
        while edge.listener.connections:
            with suppress(OSError):
                await client.send(bytes(65536))
            sent += 65536
            await asyncio.sleep(0)
    assert MIB < sent < 50 * MIB


async def test_lingering_ends_with_its_time(serve: Serve) -> None:
    edge = await serve(refuse, Limits(linger_s=2))
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc")
    assert (await client.answer()).status == 403
    assert edge.listener.connections == 1
    edge.later(2)
    assert await client.closed()


async def test_an_early_answer_to_an_upload_that_was_paused_is_not_stuck(serve: Serve) -> None:
    """The socket is paused for the unread body; lingering has to take it up again."""
    paused = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await paused.wait()
        await answer(send, b"no", 403)

    edge = await serve(app, Limits(unread_body_bytes=1000))
    client = await edge.connect()
    client.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 500000\r\n\r\n")
    client.write(bytes(500_000))
    for _ in range(20):
        await asyncio.sleep(0)
    paused.set()
    assert (await client.answer()).status == 403
