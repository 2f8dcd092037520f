"""What nodes measure is known while they answer, draining too, and never what they said before they went down."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from edgeproxy.protocol.node.instruments import Gpu
from edgeproxy.upstream.instruments import Instruments
from edgeproxy.upstream.node import Fleet
from tests.upstream.raw import Peer, raw_server
from tests.upstream.test_probe import node_at

STATUS = orjson.dumps({"susi": 0.9, "generated_tokens": 7, "gpu": {"fault": "Xid 79: it has fallen off the bus"}})


def answer(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def test_a_node_that_drains_is_asked_and_one_that_goes_down_is_not_believed_any_more() -> None:
    asked = list[bytes]()

    async def script(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            asked.append(head)
            await peer.send(answer(b"200 OK", STATUS))

    async with raw_server(script) as server:
        node = node_at(server.port)
        look = Instruments(Fleet([node])).look
        node.up(0.0)
        await look(node)
        assert node.instruments is not None and node.instruments.generated_tokens == 7
        assert asked[0].startswith(b"GET /node/v1/status HTTP/1.1\r\n") and b"x-node-token: t\r\n" in asked[0]
        node.down("draining")
        assert node.instruments is None
        await look(node)
        assert node.instruments is not None and node.instruments.gpu == Gpu(failed=True)
        node.down("still draining")
        assert node.instruments is not None, "it said so while it drained"
        node.pool.close()


@pytest.mark.parametrize("told", [answer(b"401 Unauthorized", b"{}"), answer(b"200 OK", b"[]"), b"no http\r\n\r\n"])
async def test_a_node_that_does_not_tell_has_none(told: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(told)

    async with raw_server(script) as server:
        node = node_at(server.port)
        node.up(0.0)
        await Instruments(Fleet([node])).look(node)
        assert node.instruments is None
        node.pool.close()


async def test_only_native_nodes_are_asked_again_and_again() -> None:
    asked = list[bytes]()

    async def script(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            asked.append(head)
            await peer.send(answer(b"200 OK", STATUS))

    async def wait(seconds: float) -> None:
        if len(asked) >= 3:
            raise asyncio.CancelledError

    async with raw_server(script) as server:
        native, foreign = node_at(server.port), node_at(server.port, "vllm", "b")
        with pytest.raises(asyncio.CancelledError):
            await Instruments(Fleet([native, foreign]), wait).run()
        assert len(asked) == 3
        assert foreign.instruments is None
        native.pool.close()
