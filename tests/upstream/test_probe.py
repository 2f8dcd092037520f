from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from edgeproxy.config import NodeConfig
from edgeproxy.protocol.node.report import REPORT_HEADER, NodeState
from edgeproxy.upstream.h1 import Pool, PoolLimits, UpstreamError
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.origin import Origin
from edgeproxy.upstream.probe import ProbeLimits, Prober
from tests.sim.distance import distance
from tests.upstream.raw import OK, Peer, RawServer, always, raw_server
from tests.upstream.test_node import REPORT

LIMITS = ProbeLimits(jitter=0.0)


def answer(status: bytes = b"200 OK", state: NodeState = NodeState.READY, handling_s: float = 0.0) -> bytes:
    report = REPORT._replace(running=0, state=state, handling_s=handling_s).encode()
    return b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n" + REPORT_HEADER + b": " + report + b"\r\n\r\n"


def node_at(port: int, kind: str = "native", name: str = "a", region: str = "near") -> Node:
    config = NodeConfig(name, kind, f"http://127.0.0.1:{port}", ("m",))  # type: ignore[arg-type]
    pool = Pool(Origin("http", "127.0.0.1", port), name=name, limits=PoolLimits(sweep_s=0.01))
    return Node(config, region, pool, [(b"x-node-token", b"t")])


class Pauses:
    """Stands in for waiting: notes each pause, and ends the prober after the last one wanted."""

    def __init__(self, count: int, then: Callable[[int], None] = lambda number: None) -> None:
        self.taken: list[float] = []
        self._count = count
        self._then = then

    async def __call__(self, alarm: asyncio.Event, seconds: float) -> None:
        self.taken.append(seconds)
        self._then(len(self.taken))
        if len(self.taken) >= self._count:
            raise asyncio.CancelledError


async def run(fleet: Fleet, pauses: Pauses, changed: Callable[[Node], None] = lambda node: None) -> None:
    prober = Prober(fleet, rng=Random(1), changed=changed, limits=LIMITS, wait=pauses)
    await asyncio.gather(prober.run(), return_exceptions=True)
    fleet.close()


async def probe(node: Node, limits: ProbeLimits = LIMITS, failures: int = 0) -> bool:
    fit = await Prober(Fleet([node]), rng=Random(1), limits=limits).probe(node, failures)
    node.pool.close()
    return fit


async def test_a_cold_connection_gives_no_sample_and_is_asked_again_for_one() -> None:
    asked: list[tuple[int, bytes]] = []

    async def script(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            asked.append((peer.number, head))
            await peer.send(answer())

    async with raw_server(script) as server:
        node = node_at(server.port)
        prober = Prober(Fleet([node]), rng=Random(1), limits=LIMITS)
        assert await prober.probe(node)
        assert [number for number, _ in asked] == [0] * (1 + LIMITS.exchanges)
        assert asked[0][1].startswith(b"GET /readyz HTTP/1.1\r\n")
        assert b"x-node-token: t\r\n" in asked[0][1]
        assert await prober.probe(node)
        assert len(asked) == 1 + 2 * LIMITS.exchanges
        assert node.rtt.minimum(0) is not None
        assert node.pool.idle == LIMITS.warm
        node.pool.close()


@pytest.mark.parametrize(
    ("kind", "target"),
    [("vllm", b"/health"), ("sglang", b"/health"), ("llamacpp", b"/health"), ("openai", b"/v1/models")],
)
async def test_foreign_nodes_are_asked_in_their_own_way_and_need_no_report(kind: str, target: bytes) -> None:
    heads: list[bytes] = []

    async def script(peer: Peer) -> None:
        while True:
            heads.append((await peer.request())[0])
            await peer.send(OK)

    async with raw_server(script) as server:
        node = node_at(server.port, kind)
        assert await probe(node)
        assert heads[0].startswith(b"GET " + target + b" ")
        assert (node.ready, node.report) == (True, None)


async def test_the_time_that_the_node_says_it_spent_is_taken_off() -> None:
    found = []
    for handling_s in (0.0, 1000.0):  # far more than can have passed, so that no timing decides
        async with distance(always(answer(handling_s=handling_s)), 0.040) as (_, relay):
            node = node_at(relay.port)
            assert await probe(node)
            found.append(node.rtt.minimum(0))
    assert found[0] is not None
    assert found[0] >= 0.039
    assert found[1] == 0.0


async def test_through_a_relay_the_kernels_round_trip_is_not_believed() -> None:
    async with distance(always(answer()), 0.040) as (_, relay):
        node = node_at(relay.port)
        for _ in range(3):
            assert await Prober(Fleet([node]), rng=Random(1), limits=LIMITS).probe(node)
        assert node.rtt.srtt is not None
        assert node.rtt.srtt >= 0.039
        node.pool.close()


@pytest.mark.parametrize(
    ("response", "trouble"),
    [
        (answer(b"503 Service Unavailable"), "/readyz answers 503"),
        (answer(b"401 Unauthorized"), "EDGEPROXY_NODE_TOKEN"),
        (answer(b"302 Found"), "answers 302"),
        (answer(state=NodeState.DRAINING), "draining"),
        (b"garbage\r\n\r\n", "not a response"),
        (b"", "closed the connection"),
    ],
)
async def test_a_node_that_is_not_well_is_not_ready_and_says_why(response: bytes, trouble: str) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(response)
            if not response:
                return

    async with raw_server(script) as server:
        node = node_at(server.port)
        node.up(0.0)
        assert not await probe(node)
        assert not node.ready
        assert trouble in node.trouble


async def test_a_failed_probe_changes_no_estimate() -> None:
    node = node_at(1)
    node.rtt.probe(0.040, 0)
    assert not await probe(node)
    assert (node.rtt.srtt, node.rtt.minimum(0)) == (0.040, 0.040)


async def test_one_lost_probe_is_not_the_death_of_a_well_node_and_two_are() -> None:
    async def silent(peer: Peer) -> None:
        await peer.gone()

    hasty = replace(LIMITS, timeout_s=0.02)
    async with raw_server(silent) as server:
        node = node_at(server.port)
        node.up(0.0)
        prober = Prober(Fleet([node]), rng=Random(1), limits=hasty)
        assert not await prober.probe(node)
        assert node.ready
        assert not await prober.probe(node, failures=1)
        assert not node.ready
        assert "within 0.02 s" in node.trouble
        node.pool.close()


async def test_what_waits_for_a_node_that_answers_no_probe_is_told_and_what_has_begun_goes_on() -> None:
    heads = asyncio.Semaphore(0)

    async def freezes_after_a_head(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"/begun" in head:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        heads.release()
        await peer.gone()

    async with raw_server(freezes_after_a_head) as server:
        node = node_at(server.port)
        node.up(0.0)
        begun = await node.pool.request(b"GET", b"/begun")
        begun.replaceable = False
        waiting = asyncio.create_task(node.pool.request(b"POST", b"/waiting", (), b"x"))
        await heads.acquire()
        await heads.acquire()
        prober = Prober(Fleet([node]), rng=Random(1), limits=replace(LIMITS, timeout_s=0.02, lost=2))
        await prober.probe(node)
        assert not waiting.done()
        await prober.probe(node, failures=1)
        with pytest.raises(UpstreamError, match="no answer to a probe"):
            await waiting
        assert await begun.read() == b"ab"
        node.pool.close()


async def test_a_probe_stands_in_no_line_and_leaves_no_connection_too_many() -> None:
    arrived = asyncio.Event()

    async def computes(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            if head.startswith(b"GET"):
                await peer.send(answer())
            else:
                arrived.set()
                await peer.gone()

    async with raw_server(computes) as server:
        config = NodeConfig("a", "native", f"http://127.0.0.1:{server.port}", ("m",))
        node = Node(config, "near", Pool(Origin("http", "127.0.0.1", server.port), limits=PoolLimits(connections=1)))
        node.up(0.0)
        busy = asyncio.create_task(node.pool.request(b"POST", b"/", (), b"x"))
        in_line = asyncio.create_task(node.pool.request(b"POST", b"/", (), b"x"))
        await arrived.wait()
        assert node.pool.waiting == 1
        assert await Prober(Fleet([node]), rng=Random(1), limits=LIMITS).probe(node, failures=5)
        assert node.ready
        assert (node.pool.busy, node.pool.idle, node.pool.waiting) == (1, 0, 1)
        assert not busy.done()
        node.pool.close()
        await asyncio.gather(busy, in_line, return_exceptions=True)


async def test_a_successful_probe_closes_a_breaker_whose_wait_is_over() -> None:
    async with raw_server(always(answer())) as server:
        node = node_at(server.port)
        for _ in range(5):
            node.breaker.failed(0)
        assert await probe(node)
        assert node.breaker.state(2) == "closed"


async def test_an_endless_answer_to_a_probe_is_cut() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 200_000)
        await peer.gone()

    async with raw_server(script) as server:
        node = node_at(server.port, "openai")
        assert not await probe(node, replace(LIMITS, body_bytes=100_000))
        assert "exceeds 100000 bytes" in node.trouble


async def test_a_dead_node_is_tried_ever_more_slowly_up_to_a_second() -> None:
    pauses = Pauses(6)
    await run(Fleet([node_at(1)]), pauses)
    assert pauses.taken == pytest.approx([0.25, 0.375, 0.5625, 0.84375, 1.0, 1.0])


async def test_a_node_that_comes_back_is_noticed_and_told_once() -> None:
    told: list[tuple[str, bool]] = []
    server = RawServer(always(answer()))
    await server.start(0, None)
    port = server.port
    server.refuse()
    starting: list[asyncio.Task[None]] = []

    def revive(number: int) -> None:
        if number == 2:
            starting.append(asyncio.get_running_loop().create_task(server.start(port, None)))

    class Patient(Pauses):
        async def __call__(self, alarm: asyncio.Event, seconds: float) -> None:
            await super().__call__(alarm, seconds)
            await asyncio.gather(*starting)

    await run(Fleet([node_at(port)]), Patient(5, revive), lambda node: told.append((node.name, node.ready)))
    assert told == [("a", True)]
    await server.stop()


async def test_home_and_the_three_nearest_are_asked_often_and_the_rest_seldom() -> None:
    async with raw_server(always(answer())) as server:
        nodes = [node_at(server.port, name=name, region=name) for name in "abcdef"]
        fleet = Fleet(nodes)
        for rank, node in enumerate(nodes):
            node.rtt.probe(rank, 0)
        fleet.measured(0)
        prober = Prober(fleet, rng=Random(1), limits=LIMITS)
        assert [prober.pause(node, 0, 8) for node in nodes] == [5, 5, 5, 5, 30, 30]


async def test_the_pause_varies_by_a_fifth() -> None:
    node = node_at(1)
    prober = Prober(Fleet([node]), rng=Random(1))
    pauses = [prober.pause(node, 0, 8) for _ in range(500)]
    assert 4.0 <= min(pauses) < 4.1
    assert 5.9 < max(pauses) <= 6.0


async def test_a_node_that_has_just_become_ready_is_measured_in_quick_succession() -> None:
    node = node_at(1)
    prober = Prober(Fleet([node]), rng=Random(1), limits=LIMITS)
    assert [prober.pause(node, 0, successes) for successes in (1, 7, 8)] == [0.25, 0.25, 5]


async def test_a_node_that_is_starting_gives_no_sample() -> None:
    async with raw_server(always(answer(b"503 Service Unavailable", NodeState.WARMING))) as server:
        node = node_at(server.port)
        assert not await probe(node)
    assert node.rtt.srtt is None


async def test_the_smallest_of_a_probes_round_trips_is_its_sample() -> None:
    handling = iter((0.0, 0.0, 0.5, 0.0))  # the cold exchange, then three

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer(handling_s=next(handling)))

    async with raw_server(script) as server:
        node = node_at(server.port)
        assert await probe(node)
    assert node.rtt.minimum(0) == 0.0


async def test_an_alarm_ends_the_pause() -> None:
    asked = asyncio.Semaphore(0)

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            asked.release()
            await peer.send(answer())

    ready = asyncio.Event()
    async with raw_server(script) as server:
        node = node_at(server.port)
        fleet = Fleet([node])
        task = asyncio.create_task(Prober(fleet, rng=Random(1), changed=lambda node: ready.set()).run())
        await ready.wait()
        for _ in range(2):
            await asked.acquire()
        node.down("a request failed")
        await asked.acquire()  # long before the five seconds are over
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        fleet.close()
