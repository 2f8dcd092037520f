"""A node's feed, read over a real connection, corrects what the prefix view takes the node to hold."""

from __future__ import annotations

import asyncio

import pytest

from edgeproxy.protocol.node.blocks import Change, Prefix, Snapshot
from edgeproxy.routing.prefix import ENDS
from edgeproxy.upstream.follow import Follower
from edgeproxy.upstream.node import Fleet, Node
from tests.routing.fleet import depths
from tests.upstream.raw import Peer, raw_server
from tests.upstream.test_probe import node_at

A, B = b"a" * 16, b"b" * 16
NAMES = (21, 22)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
SNAPSHOT = Snapshot("run", 3, "bits", 16, 0, 1, [(A, b""), (B, A)])
EVICTED = Change("run", 4, [(False, B, A)])


def fleet_with(node: Node) -> Fleet:
    fleet = Fleet([node])
    node.up(0.0)
    fleet.prefixes.sent(node.slot, NAMES)
    node.evictions.answered(Prefix(B, 2), NAMES, ENDS[1])
    return fleet


def depth(fleet: Fleet) -> int:
    return depths(fleet.prefixes, NAMES).get(fleet.nodes[0].slot, 0)


async def test_an_eviction_is_seen_and_the_feed_read_on_where_it_broke_off() -> None:
    asked: list[bytes] = []
    goes_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        asked.append(head)
        await peer.send(HEAD + (SNAPSHOT.encode() if peer.number == 0 else b": keep-alive\n\n" + EVICTED.encode()))
        if peer.number:
            await goes_on.wait()
        peer.close()

    async with raw_server(script) as server:
        node = node_at(server.port)
        fleet = fleet_with(node)

        seen = asyncio.Event()

        async def wait(seconds: float) -> None:
            if depth(fleet) == 1:
                seen.set()
            await asyncio.sleep(0.001)

        task = asyncio.create_task(Follower(fleet, wait).run())
        assert depth(fleet) == 2
        async with asyncio.timeout(10):
            await seen.wait()
        goes_on.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fleet.close()
    assert b"last-event-id" not in asked[0]
    assert b"\r\nlast-event-id: run-3\r\n" in asked[1]
    assert b"\r\nx-node-token: t\r\n" in asked[0]


@pytest.mark.parametrize("body", [b"data: nonsense\n\n", EVICTED.encode(), b"data: " + b"x" * (1 << 20) + b"\n\n"])
async def test_what_makes_no_sense_is_read_anew_and_changes_nothing(body: bytes) -> None:
    again = asyncio.Event()

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        assert b"last-event-id" not in head
        if peer.number == 2:
            again.set()
        await peer.send(HEAD + body)
        peer.close()

    async with raw_server(script) as server:
        fleet = fleet_with(node_at(server.port))

        async def wait(seconds: float) -> None:
            await asyncio.sleep(0.001)

        task = asyncio.create_task(Follower(fleet, wait).run())
        async with asyncio.timeout(10):
            await again.wait()
        assert depth(fleet) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fleet.close()


async def test_a_node_that_is_gone_tells_nothing_any_more() -> None:
    replaced = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await replaced.wait()
        await peer.send(HEAD + SNAPSHOT.encode() + EVICTED.encode())
        peer.close()

    async with raw_server(script) as server:
        node, heir = node_at(server.port), node_at(server.port, name="heir")
        fleet = fleet_with(node)
        reading = asyncio.create_task(Follower(fleet).read(node))
        fleet.replace([heir])
        assert heir.slot == node.slot
        fleet.prefixes.sent(heir.slot, NAMES)
        replaced.set()
        await reading
        assert depth(fleet) == 2
        node.pool.close()
        fleet.close()


async def test_foreign_nodes_and_those_that_are_not_ready_are_not_asked() -> None:
    rounds = 0

    async def wait(seconds: float) -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 5:
            raise asyncio.CancelledError
        await asyncio.sleep(0)

    async def script(peer: Peer) -> None:
        raise AssertionError("nobody is to be asked")

    async with raw_server(script) as server:
        foreign, down = node_at(server.port, kind="vllm"), node_at(server.port, name="b")
        fleet = Fleet([foreign, down])
        foreign.up(0.0)
        with pytest.raises(asyncio.CancelledError):
            await Follower(fleet, wait).run()
        fleet.close()
        assert server.accepted == 0
