"""Requests share what connections a node has, and those in line are served in their turn."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from time import monotonic

import pytest

from edgeproxy.upstream.h1 import SilentNode, UpstreamError
from tests.upstream.raw import FAST, OK, Peer, always, body, get, pool_to, raw_server, until


async def test_many_requests_at_once_share_what_connections_there_are() -> None:
    async with raw_server(always(OK)) as server:
        pool = pool_to(server.port, replace(FAST, connections=4))

        async def client() -> list[bytes]:
            return [await body(await get(pool)) for _ in range(10)]

        assert await asyncio.gather(*(client() for _ in range(16))) == [[b"ok"] * 10] * 16
        assert (pool.idle, pool.busy, pool.waiting) == (4, 0, 0)
        assert server.accepted == 4
        pool.close()
        assert (pool.idle, pool.busy) == (0, 0)


async def test_those_in_line_are_served_in_their_order() -> None:
    async with raw_server(always(OK)) as server:
        pool = pool_to(server.port, replace(FAST, connections=1))
        order: list[int] = []

        async def client(number: int) -> None:
            await get(pool)
            order.append(number)

        await asyncio.gather(*(client(number) for number in range(8)))
        assert order == list(range(8))
        pool.close()


async def test_a_full_line_refuses_and_a_slow_one_times_out() -> None:
    async def silent(peer: Peer) -> None:
        await peer.gone()

    async with raw_server(silent) as server:
        pool = pool_to(server.port, replace(FAST, connections=1, waiting=1, wait_s=0.02))
        first = asyncio.create_task(get(pool))
        await until(lambda: pool.busy == 1)
        second = asyncio.create_task(get(pool))
        await until(lambda: pool.waiting == 1)
        with pytest.raises(UpstreamError, match="1 requests wait") as caught:
            await get(pool)
        assert caught.value.phase == "connect"
        with pytest.raises(UpstreamError, match="became free within"):
            await second
        assert pool.waiting == 0
        pool.close()
        with pytest.raises(UpstreamError, match="pool was closed"):
            await first


async def test_who_leaves_the_line_passes_the_connection_on() -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await gate.wait()
            await peer.send(OK)

    async with raw_server(script) as server:
        pool = pool_to(server.port, replace(FAST, connections=1))
        first = asyncio.create_task(get(pool))
        await until(lambda: pool.busy == 1)
        leaving, staying = (asyncio.create_task(get(pool)) for _ in range(2))
        await until(lambda: pool.waiting == 2)
        first.add_done_callback(lambda _: leaving.cancel())
        gate.set()
        assert (await staying).status == 200
        assert leaving.cancelled()
        assert server.accepted <= 2
        assert (pool.idle, pool.busy, pool.waiting) == (1, 0, 0)
        pool.close()


async def test_who_is_cancelled_in_the_same_turn_is_passed_over() -> None:
    """Its future is done before its task has had a turn to leave the line."""
    async with raw_server(lambda peer: peer.gone()) as server:
        pool = pool_to(server.port, replace(FAST, connections=1))
        tasks = [asyncio.create_task(get(pool)) for _ in range(3)]
        await until(lambda: pool.silent_s(monotonic() + 1) > 0 and pool.waiting == 2)
        tasks[1].cancel()
        assert pool.give_back("it is silent") == 2
        for task, error in zip(tasks, (SilentNode, asyncio.CancelledError, SilentNode), strict=True):
            with pytest.raises(error):
                await task
        pool.close()


async def test_what_is_asked_at_once_stands_in_no_line_and_leaves_none_too_many() -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            if peer.number == 0:
                await gate.wait()
            await peer.send(OK)

    async with raw_server(script) as server:
        pool = pool_to(server.port, replace(FAST, connections=1))
        first = asyncio.create_task(get(pool))
        await until(lambda: pool.busy == 1)
        in_line = asyncio.create_task(get(pool))
        await until(lambda: pool.waiting == 1)
        assert await body(await pool.request(b"GET", b"/", at_once=True)) == b"ok"
        assert (pool.busy, pool.idle, pool.waiting) == (1, 0, 1)
        gate.set()
        assert [(await task).status for task in (first, in_line)] == [200, 200]
        pool.close()
