"""What one side does not take, the other is not asked for: bounds are counted in bytes that passed."""

from __future__ import annotations

import asyncio

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import MIB, Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import OK, answer, echo, piece, read_body
from tests.wire.conftest import Serve
from tests.wire.raw import PATIENCE_S, RawClient

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
KERNEL = 16 * MIB
"""More than the socket buffers of both ends hold together on loopback."""


class Flood:
    """Sends for ever, and tells how much `send()` accepted."""

    def __init__(self) -> None:
        self.sent = 0
        self.raised = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await send(OK)
        try:
            while True:
                await send(piece(bytes(65536)))
                self.sent += 65536
                await asyncio.sleep(0)
        except OSError:
            self.raised.set()
            raise

    async def blocked(self) -> int:
        """What has been sent once nothing more is."""
        last = -1
        async with asyncio.timeout(PATIENCE_S):
            while last != self.sent:
                last = self.sent
                await asyncio.sleep(0.1)
        return last


async def test_send_waits_for_a_client_that_does_not_read_and_goes_on_when_it_does(serve: Serve) -> None:
    flood = Flood()
    edge = await serve(flood)
    client = await edge.connect()
    client.stop_reading()
    await client.send(GET)
    held = await flood.blocked()
    assert held < KERNEL
    client.resume_reading()
    await client.read_head()
    while flood.sent < 2 * held:
        await client.read_chunk()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_blocked_send_raises_when_the_client_leaves(serve: Serve, how: str) -> None:
    flood = Flood()
    edge = await serve(flood)
    client = await edge.connect()
    client.stop_reading()
    await client.send(GET)
    await flood.blocked()
    if how == "reset":
        client.reset()
    else:
        await client.close()
    async with asyncio.timeout(PATIENCE_S):
        await flood.raised.wait()


async def test_a_client_that_takes_nothing_is_cut_off_in_the_end(serve: Serve) -> None:
    flood = Flood()
    edge = await serve(flood, Limits(stalled_write_s=30))
    client = await edge.connect()
    client.stop_reading()
    await client.send(GET)
    await flood.blocked()
    edge.later(0)
    edge.later(29)
    await asyncio.sleep(0)
    assert not flood.raised.is_set()
    edge.later(31)
    async with asyncio.timeout(PATIENCE_S):
        await flood.raised.wait()


async def test_a_client_that_takes_something_is_not_cut_off(serve: Serve) -> None:
    flood = Flood()
    edge = await serve(flood, Limits(stalled_write_s=30))
    client = await edge.connect()
    client.stop_reading()
    await client.send(GET)
    await flood.blocked()
    edge.later(0)
    client.resume_reading()
    await client.read_head()
    while True:  # until the listener's own queue has been taken, and filled again
        await client.read_chunk()
        if flood.sent > 2 * KERNEL:
            break
    assert not flood.raised.is_set()


async def upload(client: RawClient, size: int, sent: list[int]) -> None:
    client.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % size)
    for _ in range(size // 65536):
        await client.send(bytes(65536))
        sent[0] += 65536


async def test_an_upload_that_is_not_read_is_not_taken(serve: Serve) -> None:
    read = asyncio.Event()
    size = 2 * KERNEL

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read.wait()
        await answer(send, b"%d" % len(await read_body(receive)))

    edge = await serve(app, Limits(body_bytes=size))
    client = await edge.connect()
    sent = [0]
    task = asyncio.create_task(upload(client, size, sent))
    last = -1
    async with asyncio.timeout(PATIENCE_S):
        while last != sent[0]:
            last = sent[0]
            await asyncio.sleep(0.1)
    assert last < KERNEL
    edge.later(1000)  # the client waits for us, so no deadline of its own passes
    read.set()
    await task
    assert (await client.answer()).body == b"%d" % size


async def test_a_client_that_stops_in_its_upload_gets_408(serve: Serve) -> None:
    edge = await serve(echo, Limits(stalled_read_s=30))
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
    assert (await client.read_head())[0] == 100
    edge.later(29)
    edge.later(31)
    reply = await client.answer()
    assert (reply.status, reply["connection"]) == (408, "close")


async def test_answers_to_a_client_that_only_sends_are_not_collected(serve: Serve) -> None:
    """Each answer is one message, so that no `send()` waits: the next request has to."""
    answered = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        await answer(send, bytes(MIB))
        answered += 1

    edge = await serve(app, Limits(pipeline_depth=100))
    client = await edge.connect()
    client.stop_reading()
    await client.send(GET * 50)
    last = -1
    async with asyncio.timeout(PATIENCE_S):
        while last != answered:
            last = answered
            await asyncio.sleep(0.1)
    assert answered * MIB < KERNEL
    client.resume_reading()
    for _ in range(50):
        assert len((await client.answer()).body) == MIB
