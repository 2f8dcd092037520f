"""What waits at a node that has fallen silent is given back; a node that only takes its time is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from edgeproxy.config import NodeConfig
from edgeproxy.upstream.h1 import Pool, PoolLimits, Response, SilentNode, UpstreamError
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.vigil import Vigil, VigilLimits
from tests.upstream.raw import OK, Peer, RawServer, always, raw_server, until
from tests.upstream.test_probe import node_at

QUICK = VigilLimits(tick_s=0.001, patience_s=0.0, answer_s=0.05)
PATIENT = VigilLimits(tick_s=0.001, patience_s=0.0, answer_s=60.0)


class Computing:
    """Answers questions; a POST only once `done` is set."""

    def __init__(self) -> None:
        self.questions = 0
        self.done = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            if head.startswith(b"POST"):
                await self.done.wait()
            else:
                self.questions += 1
            await peer.send(OK)


async def frozen(peer: Peer) -> None:
    """Accepts everything and says nothing, as a stopped process does."""
    await peer.gone()


def ready(server: RawServer, name: str = "a", kind: str = "native") -> Node:
    node = node_at(server.port, kind, name)
    node.up(0.0)
    return node


async def ask(node: Node) -> Response:
    node.in_flight += 1
    return await node.pool.request(b"POST", b"/v1/chat/completions", (), b"x")


@asynccontextmanager
async def waiting(node: Node) -> AsyncIterator[asyncio.Task[Response]]:
    request = asyncio.create_task(ask(node))
    await until(lambda: node.pool.silent_s(monotonic() + 1) > 0)
    try:
        yield request
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


@asynccontextmanager
async def watched(
    fleet: Fleet, limits: VigilLimits, told: Callable[[Node], None] = lambda node: None
) -> AsyncIterator[None]:
    task = asyncio.create_task(Vigil(fleet, limits=limits, told=told).run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        fleet.close()


async def test_what_waits_at_a_frozen_node_is_given_back() -> None:
    async with raw_server(frozen) as server, raw_server(always(OK)) as other:
        node = ready(server)
        async with waiting(node) as request, watched(Fleet([node, ready(other, "b")]), QUICK):
            with pytest.raises(UpstreamError, match="silent while requests waited"):
                await request
            assert not node.ready
            assert node.alarm.is_set(), "the prober looks at once"


async def test_a_node_that_computes_for_long_is_left_alone() -> None:
    script = Computing()
    async with raw_server(script) as server, raw_server(always(OK)) as other:
        node = ready(server)
        async with waiting(node) as request, watched(Fleet([node, ready(other, "b")]), PATIENT):
            await until(lambda: script.questions > 3)
            script.done.set()
            assert (await request).status == 200
            assert node.ready


async def test_with_nowhere_to_go_a_request_waits_longer_but_not_for_ever() -> None:
    questions = 0

    async def silent(peer: Peer) -> None:
        nonlocal questions
        questions += (await peer.request())[0].startswith(b"GET")
        await peer.gone()

    async with raw_server(silent) as server, raw_server(always(OK)) as other:
        node, down = ready(server), node_at(other.port, name="b")
        async with waiting(node) as request, watched(Fleet([node, down]), QUICK):
            with pytest.raises(SilentNode):
                await request
            assert questions == QUICK.last_questions
            assert node.alarm.is_set()


async def test_all_nodes_frozen_at_once_are_each_asked_longer() -> None:
    async with raw_server(frozen) as server, raw_server(frozen) as other:
        nodes = [ready(server), ready(other, "b")]
        async with waiting(nodes[0]) as first, waiting(nodes[1]) as second, watched(Fleet(nodes), QUICK):
            for request in (first, second):
                with pytest.raises(SilentNode):
                    await request
            assert not any(node.ready for node in nodes)


async def test_a_node_known_to_be_silent_gives_a_last_resort_back_as_soon_as_others() -> None:
    questions = 0

    async def silent(peer: Peer) -> None:
        nonlocal questions
        questions += (await peer.request())[0].startswith(b"GET")
        await peer.gone()

    async with raw_server(silent) as server:
        node = ready(server)
        node.down("silent before", silent=True)
        async with waiting(node) as request, watched(Fleet([node]), QUICK):
            with pytest.raises(SilentNode):
                await request
            assert questions == QUICK.questions


async def test_who_stands_in_line_at_a_frozen_node_is_given_back_too_and_the_question_stands_in_none() -> None:
    told: list[Node] = []
    async with raw_server(frozen) as server, raw_server(always(OK)) as other:
        pool = Pool(Origin("http", "127.0.0.1", server.port), limits=PoolLimits(connections=1))
        node = Node(NodeConfig("a", "native", f"http://127.0.0.1:{server.port}", ("m",)), "near", pool)
        node.up(0.0)
        fleet = Fleet([node, ready(other, "b")])
        async with waiting(node) as request:
            in_line = asyncio.create_task(ask(node))
            await until(lambda: pool.waiting == 1)
            async with watched(fleet, QUICK, told.append):
                for task in (request, in_line):
                    with pytest.raises(SilentNode):
                        await task
        assert told == [node]
        assert node.silences == 1


async def test_a_stream_of_which_something_has_gone_on_is_not_cut() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number == 0:
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\nab")
        await peer.gone()

    async with raw_server(script) as server, raw_server(always(OK)) as other:
        node = ready(server)
        begun = await ask(node)
        begun.replaceable = False
        async with waiting(node) as request, watched(Fleet([node, ready(other, "b")]), QUICK):
            with pytest.raises(UpstreamError):
                await request
            assert await begun.read() == b"ab"
            begun.close()


async def test_a_stream_that_has_shown_nothing_yet_is_given_back() -> None:
    """Engines send the head at once and compute after it."""

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        if head.startswith(b"POST"):
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        await peer.gone()

    async with raw_server(script) as server, raw_server(always(OK)) as other:
        node = ready(server)
        begun = await ask(node)
        async with watched(Fleet([node, ready(other, "b")]), QUICK):
            with pytest.raises(UpstreamError, match="silent"):
                await begun.read()


async def test_who_is_asked_for_a_sign_of_life_and_when() -> None:
    limits = VigilLimits()
    async with raw_server(frozen) as server:
        node, provider = ready(server), ready(server, "p", "openai")
        vigil = Vigil(Fleet([node, provider]))
        async with waiting(node), waiting(provider):
            now = monotonic()
            assert vigil.suspects(now) == []
            assert vigil.suspects(now + limits.patience_s + 0.01) == [node]
            assert vigil.suspects(now + limits.metered_patience_s + 0.01) == [node, provider]
            node.pool.heard_at = now + 2
            assert vigil.suspects(now + 2.1) == [provider], "a byte on any connection is a sign of life"
            provider.in_flight = 0
            assert vigil.suspects(now + 2.2) == [], "probes alone are the prober's affair"
            node.down("known")
            assert vigil.suspects(now + 100) == []
            node.down("known", silent=True)
            assert vigil.suspects(now + 100) == [node], "a last resort waits there"
        node.pool.close()
        provider.pool.close()


def test_the_bound_is_a_second_and_a_half_and_five_and_a_half_with_nowhere_to_go() -> None:
    limits = VigilLimits()
    assert limits.tick_s + limits.patience_s + limits.questions * limits.answer_s == pytest.approx(1.5)
    assert limits.tick_s + limits.patience_s + limits.last_questions * limits.answer_s == pytest.approx(5.5)
