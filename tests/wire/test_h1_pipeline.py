"""Several requests on their way at once: answered in order, within bounds, and none begun too early."""

from __future__ import annotations

import asyncio

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import answer, echo
from tests.wire.conftest import Serve
from tests.wire.raw import PATIENCE_S


def get(path: bytes, body: bytes = b"") -> bytes:
    return b"GET /" + path + b" HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Gate:
    """Answers with the path once it is opened; tells what has begun."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.first = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.begun.append(scope["raw_path"])
        self.first.set()
        await self.open.wait()
        await echo(scope, receive, send)


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(serve: Serve) -> None:
    gate = Gate()
    edge = await serve(gate)
    client = await edge.connect()
    await client.send(get(b"1", b"a") + get(b"2", b"b"))
    await client.send(get(b"3", b"c"))
    async with asyncio.timeout(PATIENCE_S):
        await gate.first.wait()
    assert gate.begun == [b"/1"]
    gate.open.set()
    assert [(await client.answer()).body for _ in range(3)] == [b"GET /1 a", b"GET /2 b", b"GET /3 c"]


async def test_a_pipeline_beyond_its_depth_is_answered_so_far_and_closed(serve: Serve) -> None:
    edge = await serve(echo, Limits(pipeline_depth=3))
    client = await edge.connect()
    await client.send(b"".join(get(b"%d" % n) for n in range(50)))
    replies = [await client.answer() for _ in range(4)]
    assert [reply["connection"] for reply in replies] == [None, None, None, "close"]
    edge.later(Limits().linger_s)
    assert await client.closed()


async def test_a_large_body_waiting_its_turn_is_not_collected(serve: Serve) -> None:
    gate = Gate()
    edge = await serve(gate, Limits(unread_body_bytes=1000))
    client = await edge.connect()
    await client.send(get(b"1") + get(b"2") + get(b"3", bytes(5000)))
    gate.open.set()
    replies = [await client.answer() for _ in range(2)]
    assert [reply["connection"] for reply in replies] == [None, "close"]
    assert gate.begun == [b"/1", b"/2"]


async def test_a_bad_request_is_refused_in_its_turn(serve: Serve) -> None:
    gate = Gate()
    edge = await serve(gate)
    client = await edge.connect()
    await client.send(get(b"1") + get(b"2") + b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + get(b"4"))
    gate.open.set()
    replies = [await client.answer() for _ in range(3)]
    assert [(reply.status, reply["connection"]) for reply in replies] == [(200, None), (200, None), (400, "close")]


async def test_a_request_that_stalls_behind_a_running_one_does_not_disturb_it(serve: Serve) -> None:
    gate = Gate()
    edge = await serve(gate)
    client = await edge.connect()
    await client.send(get(b"1") + b"GET /2 HT")
    async with asyncio.timeout(PATIENCE_S):
        await gate.first.wait()
    edge.later(Limits().head_s)
    gate.open.set()
    assert [(await client.answer()).status for _ in range(2)] == [200, 408]


async def test_nothing_after_a_last_request_is_served(serve: Serve) -> None:
    gate = Gate()
    edge = await serve(gate)
    client = await edge.connect()
    await client.send(b"GET /1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" + get(b"2"))
    gate.open.set()
    assert (await client.answer()).body == b"GET /1 "
    edge.later(Limits().linger_s)
    assert await client.closed()
    assert gate.begun == [b"/1"]


async def test_the_next_request_need_not_wait_for_work_after_the_answer(serve: Serve) -> None:
    hold = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, scope["raw_path"])
        if scope["raw_path"] == b"/1":
            await hold.wait()

    edge = await serve(app)
    client = await edge.connect()
    await client.send(get(b"1") + get(b"2"))
    assert [(await client.answer()).body for _ in range(2)] == [b"/1", b"/2"]
    hold.set()


async def test_a_bad_request_behind_an_ignored_upgrade_is_refused_in_its_turn(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    upgrade = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    await client.send(upgrade + b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n")
    assert [(await client.answer()).status for _ in range(2)] == [200, 400]
    assert not caplog.records
