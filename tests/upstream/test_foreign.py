"""Nodes that are not our own: asked for what they tell, left alone about what they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
import pytest

from edgeproxy.config import NodeConfig
from edgeproxy.upstream.foreign import ASK_AGAIN_S, Foreign
from edgeproxy.upstream.h1 import Pool, UpstreamError
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.probe import ProbeLimits, Prober
from tests.fake_node import FakeNode
from tests.protocol.node.test_foreign import LLAMACPP, MODELS, SGLANG, VLLM

PAGES: dict[str, dict[str, tuple[int, bytes]]] = {
    "vllm": {"/health": (200, b""), "/metrics": (200, VLLM), "/v1/models": (200, MODELS)},
    "sglang": {"/health": (200, b""), "/metrics": (200, SGLANG), "/v1/models": (200, MODELS)},
    "llamacpp": {
        "/health": (200, b'{"status":"ok"}'),
        "/metrics": (200, LLAMACPP),
        "/props": (200, b'{"default_generation_settings":{"n_ctx":4096}}'),
    },
}


@asynccontextmanager
async def node_of(kind: Any, fake: FakeNode, **more: Any) -> AsyncIterator[Node]:
    fake.pages = dict(PAGES.get(kind, {}))
    config = NodeConfig("a", kind, fake.url, ("m",), **more)
    node = Node(config, "near", Pool(Origin("http", "127.0.0.1", fake.port), name="a"))
    try:
        yield node
    finally:
        node.pool.close()


def asked(fake: FakeNode) -> list[str]:
    return [received.path for received in fake.requests]


@pytest.mark.parametrize(("kind", "running"), [("vllm", 5), ("sglang", 4), ("llamacpp", 2)])
async def test_a_probe_learns_load_and_context(kind: str, running: int) -> None:
    async with FakeNode() as fake, node_of(kind, fake) as node:
        prober = Prober(Fleet([node]), rng=Random(1), limits=ProbeLimits(warm=1))
        assert await prober.probe(node)
        assert node.outlook.load.running == running
        assert node.outlook.load.queue(asyncio.get_running_loop().time()) > 0.0, "requests wait there"
        assert node.context == 4096
        assert all(received.method == "GET" for received in fake.requests), "a probe costs no tokens"


async def test_a_server_without_metrics_is_well_and_seldom_asked_again() -> None:
    async with FakeNode() as fake, node_of("llamacpp", fake) as node:
        fake.pages["/metrics"] = (501, b'{"error":{"message":"This server does not support metrics endpoint."}}')
        foreign = Foreign(node)
        for now in (0.0, ASK_AGAIN_S - 1):
            await foreign.look(now, 0.0)
        assert asked(fake).count("/metrics") == 1
        fake.pages["/metrics"] = PAGES["llamacpp"]["/metrics"]
        await foreign.look(ASK_AGAIN_S, 0.0)
        await foreign.look(ASK_AGAIN_S + 1, 0.0)
        assert asked(fake).count("/metrics") == 3
        assert node.outlook.load.running == 2
        assert asked(fake).count("/props") == 1, "a context does not change"


async def test_a_plain_provider_is_asked_for_nothing_more() -> None:
    async with FakeNode() as fake, node_of("openai", fake) as node:
        await Foreign(node).look(0.0, 0.0)
        assert asked(fake) == []


async def test_full_memory_makes_a_node_hot() -> None:
    async with FakeNode() as fake, node_of("vllm", fake) as node:
        quiet = VLLM.replace(b" 7.0", b" 0.0")
        fake.pages["/metrics"] = (200, quiet)
        foreign = Foreign(node)
        await foreign.look(0.0, 0.0)
        assert not node.outlook.load.hot(0.0, 100)
        fake.pages["/metrics"] = (200, quiet.replace(b"0.5\n", b"1.0\n").replace(b"0.25\n", b"1.0\n"))
        await foreign.look(1.0, 0.0)
        assert node.outlook.load.hot(1.0, 100)


async def test_an_endless_exposition_is_a_failed_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeproxy.upstream.foreign.MAX_METRICS_BYTES", 100)
    async with FakeNode() as fake, node_of("vllm", fake) as node:
        with pytest.raises(UpstreamError, match="more than 100 bytes"):
            await Foreign(node).look(0.0, 0.0)


async def test_a_model_goes_by_the_nodes_name_there() -> None:
    async with FakeNode() as fake, node_of("vllm", fake, names=(("m", "org/Model-7B"),)) as node:
        body = orjson.dumps({"model": "m", "messages": [], "seed": 2**63 - 1})
        assert orjson.loads(node.body(body)) == {"model": "org/Model-7B", "messages": [], "seed": 2**63 - 1}
        odd = b'"z":1e400,"y":%b,"x":%b%b}' % (b"9" * 400, b"[" * 500, b"]" * 500)
        assert node.body(b'{"model":"m",' + odd) == b'{"model":"org/Model-7B",' + odd
    async with FakeNode() as fake, node_of("vllm", fake) as node:
        assert node.body(body) is body
