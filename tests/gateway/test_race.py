"""A late stream is sent to a second node too: one answers, the other is ended and blamed for nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import monotonic

import pytest

from edgeproxy.config import GatewayLimits
from edgeproxy.routing.hedge import MAX_SHARE, Hedging
from edgeproxy.routing.lateness import LEAST_SAMPLES
from tests import fake_behaviours, fake_exchange
from tests.fake_exchange import STREAM
from tests.fake_native import Native, cut, text_of
from tests.gateway.drive import Edge, ask, begin, chat, edge

Started = Callable[..., AbstractAsyncContextManager[Edge]]
SAVED = round(1 / MAX_SHARE)
"""Requests that pay for one copy."""
LATE_S = 0.02
"""By which a node is late now and then."""


@pytest.fixture
def hedging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """A proxy that has served `saved` requests, of which one in twenty was late by LATE_S."""

    @asynccontextmanager
    async def started(*, attempts: int = 3, saved: int = SAVED) -> AsyncIterator[Edge]:
        budget = Hedging(MAX_SHARE)
        for _ in range(saved - 1):  # the request to come counts, too
            budget.sent()
        monkeypatch.setattr("edgeproxy.gateway.relay.Hedging", lambda share: budget)
        async with edge(tmp_path, GatewayLimits(hedge_share=MAX_SHARE, attempts=attempts)) as e:
            for node, rtt in zip(e.fleet.nodes, (0.001, 0.040), strict=True):
                node.rtt.probe(rtt, 0.0)
                for _ in range(LEAST_SAMPLES):
                    node.outlook.lateness.seen(LATE_S)
            e.fleet.measured(0.0)
            yield e

    return started


def expect(e: Edge) -> None:
    """Nothing was lost: no connection, no place at a node, and no node is thought ill of."""
    assert e.in_flight == 0
    assert all(node.pool.busy == 0 for node in e.fleet.nodes)
    assert {node.breaker.state(monotonic()) for node in e.fleet.nodes} == {"closed"}
    assert not any(node.alarm.is_set() for node in e.fleet.nodes)


def told(e: Edge) -> tuple[str, int, str | None]:
    last = e.lines.requests[-1]
    return last["region"], last["attempts"], last["hedge"]


async def test_the_second_node_answers_for_a_late_first_one(hedging: Started) -> None:
    async with hedging() as e:
        e.far.overrides["slow"] = "ok"
        reply = await ask(e.app, chat("slow", stream=True))
        assert (reply.status, reply.body) == (200, STREAM)
        assert reply.header(b"x-edge-region") == b"far"
        assert reply.header(b"x-edge-attempts") == b"2"
        await e.near.until(lambda: e.near.abandoned == ["slow"])
        assert told(e) == ("far", 2, "won")
        assert e.lines.requests[-1]["failures"] == []
        assert e.lines.requests[-1]["failover_s"] > 0.0
        expect(e)
        metrics = (await ask(e.admin, method="GET", path="/metrics")).body
        assert b'edgeproxy_hedges_total{outcome="won"} 1.0' in metrics
        assert not re.findall(rb"edgeproxy_node_failures_total\{.*\} [^0]", metrics)
        assert (await ask(e.admin, method="GET", path="/admin/decisions")).json["decisions"][0]["hedge"] == "won"


async def test_the_first_node_may_answer_all_the_same(hedging: Started) -> None:
    async with hedging() as e:
        exchange = begin(e.app, chat("slow", stream=True))
        await e.far.until(lambda: bool(e.far.chats))
        e.near.gate.set()
        reply = await exchange.done()
        assert (reply.body, reply.header(b"x-edge-region")) == (STREAM, b"near")
        assert reply.header(b"x-edge-attempts") == b"2"
        await e.far.until(lambda: e.far.abandoned == ["slow"])
        assert told(e) == ("near", 2, "lost")
        expect(e)


async def test_where_the_second_node_fails_the_first_is_waited_for(hedging: Started) -> None:
    async with hedging() as e:
        e.far.overrides["slow"] = "500"
        exchange = begin(e.app, chat("slow", stream=True))
        await e.far.until(lambda: bool(e.far.chats))
        e.near.gate.set()
        reply = await exchange.done()
        assert (reply.body, reply.header(b"x-edge-region")) == (STREAM, b"near")
        assert told(e) == ("near", 2, "failed")
        assert e.lines.requests[-1]["failures"] == ["far-1: status_5xx"]


async def test_where_the_first_node_fails_meanwhile_the_second_is_waited_for(hedging: Started) -> None:
    async with hedging() as e:
        e.near.overrides["slow"] = "wait-then-500"
        exchange = begin(e.app, chat("slow", stream=True))
        await e.far.until(lambda: bool(e.far.chats))
        e.near.gate.set()
        async with asyncio.timeout(10):
            await e.fleet.nodes[0].alarm.wait()
        e.far.gate.set()
        reply = await exchange.done()
        assert (reply.body, reply.header(b"x-edge-region")) == (STREAM, b"far")
        assert told(e) == ("far", 2, "won")
        assert e.lines.requests[-1]["failures"] == ["near-1: status_5xx"]


async def test_where_both_fail_the_client_is_told_once_and_nobody_is_asked_twice(hedging: Started) -> None:
    async with hedging() as e:
        e.near.overrides["slow"], e.far.overrides["slow"] = "wait-then-500", "429"
        exchange = begin(e.app, chat("slow", stream=True))
        await e.far.until(lambda: bool(e.far.chats))
        e.near.gate.set()
        reply = await exchange.done()
        assert (reply.status, reply.header(b"retry-after")) == (429, b"7"), "who says when to come back tells more"
        assert (len(e.near.chats), len(e.far.chats)) == (1, 1)
        assert sorted(e.lines.requests[-1]["failures"]) == ["far-1: busy", "near-1: status_5xx"]
        assert told(e)[1:] == (2, "failed")
        assert e.in_flight == 0


async def test_a_client_that_leaves_ends_both(hedging: Started) -> None:
    async with hedging() as e:
        exchange = begin(e.app, chat("slow", stream=True))
        await e.near.until(lambda: bool(e.near.chats))
        await e.far.until(lambda: bool(e.far.chats))
        exchange.leave()
        await exchange.done()
        await e.near.until(lambda: e.near.abandoned == ["slow"])
        await e.far.until(lambda: e.far.abandoned == ["slow"])
        assert e.lines.requests[-1]["client_gone"]
        assert told(e)[1:] == (2, "abandoned")
        expect(e)


async def test_the_copy_streams_and_is_gone_on_with(hedging: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node dies in the middle; the first one, which was late, goes on."""
    async with hedging() as e:
        near, far = Native(e.near, 11), Native(e.far, 22, [cut(9)])

        async def answer(x: fake_exchange.Exchange) -> None:
            if x.node is e.near and "resume" not in x.received.json:
                await x.forever()
            await (near if x.node is e.near else far)(x)

        for node in e.fleet.nodes:
            response = await node.pool.request(b"GET", b"/readyz")
            node.observe(response.headers, 0.0)
            while await response.read():
                pass
        monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", answer)
        reply = await ask(e.app, chat("ok", stream=True, stream_options={"include_usage": True}))
        *chunks, done = reply.events()
        said = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
        assert ("".join(said), done) == (text_of(22), "[DONE]")
        assert len(near.resumes) == 1
        assert e.lines.requests[-1]["hedge"] == "won"
        assert e.lines.requests[-1]["resumes"] == 1
        assert e.in_flight == 0


async def test_who_has_begun_to_answer_is_not_late(hedging: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeproxy.gateway.race.due_s", lambda outlook, expected: 0.5)
    async with hedging() as e:
        exchange = begin(e.app, chat("headers-then-nothing", stream=True))
        await asyncio.sleep(0.6)
        assert (len(e.near.chats), len(e.far.chats)) == (1, 0)
        exchange.leave()
        await exchange.done()


@pytest.mark.parametrize(
    ("body", "headers", "attempts", "saved"),
    [
        (chat("slow"), {}, 3, SAVED),
        (chat("slow", stream=True), {"x-edge-region": "near"}, 3, SAVED),
        (chat("slow", stream=True), {}, 1, SAVED),
        (chat("slow", stream=True), {}, 3, SAVED - 1),
        (chat("near-only", stream=True), {}, 3, SAVED),
    ],
    ids=["whole", "pinned", "one attempt", "nothing saved", "one node"],
)
async def test_no_copy(
    hedging: Started, body: dict[str, object], headers: dict[str, str], attempts: int, saved: int
) -> None:
    async with hedging(attempts=attempts, saved=saved) as e:
        e.near.overrides["near-only"] = "slow"
        exchange = begin(e.app, body, headers=headers)
        await e.near.until(lambda: bool(e.near.chats))
        await asyncio.sleep(6 * LATE_S)
        e.near.gate.set()
        reply = await exchange.done()
        assert (reply.status, reply.header(b"x-edge-attempts")) == (200, b"1")
        assert not e.far.chats
        assert told(e) == ("near", 1, None)
