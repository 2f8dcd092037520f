"""What happens, in this order, to a request that its best node does not take."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from edgeproxy.config import NodeConfig, RegionConfig
from edgeproxy.explain import render
from edgeproxy.gateway.account import Call
from edgeproxy.gateway.course import hold_until
from edgeproxy.gateway.reading import AT_ONCE_BYTES
from edgeproxy.routing.load import Occupancy
from edgeproxy.upstream.node import Node
from tests.fake_node import FakeNode
from tests.gateway.drive import Edge, ask, begin, chat, edge


def busy(node: Node, now: float, *, waiting: int = 3) -> None:
    node.outlook.reported(Occupancy(2, waiting, 5000, 100_000), now)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_standby_nodes_serve_when_all_others_are_down_and_not_before(tmp_path: Path) -> None:
    async with FakeNode() as usual, FakeNode() as spare:
        regions = (
            RegionConfig("near", (NodeConfig("spare", "native", spare.url, ("ok",), standby=True),)),
            RegionConfig("far", (NodeConfig("usual", "native", usual.url, ("ok",)),)),
        )
        async with edge(tmp_path, regions=regions) as e:
            assert (await ask(e.app, chat("ok"))).header(b"x-edge-region") == b"far"
            e.fleet.nodes[1].down("test")
            assert (await ask(e.app, chat("ok"))).header(b"x-edge-region") == b"near"
            assert e.lines.requests[-1]["reason"] == "standby"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_made_shorter_only_where_the_client_allows_it(tmp_path: Path, stream: bool) -> None:
    async with edge(tmp_path) as e:
        body = chat("short-of-memory", stream=stream, max_tokens=500)
        reply = await ask(e.app, body)
        assert (reply.status, reply.error["code"]) == (429, "oom_predicted")
        assert reply.error["recovery"]["max_tokens_that_fit"] == 8
        assert reply.header(b"x-edge-degraded") is None
        for node in e.fleet.nodes:
            node.breaker.not_before = 0.0
        reply = await ask(e.app, body, headers={"x-edge-degrade": "allow"})
        assert (reply.status, reply.header(b"x-edge-degraded")) == (200, b"max_tokens=8")


async def test_the_fallback_model_answers_when_no_node_takes_the_request_and_the_client_is_told(tmp_path: Path) -> None:
    async with FakeNode() as first, FakeNode() as second:
        regions = (
            RegionConfig("near", (NodeConfig("first", "native", first.url, ("500", "429", "400")),)),
            RegionConfig("far", (NodeConfig("second", "native", second.url, ("ok",)),)),
        )
        fallbacks = {"500": "ok", "429": "ok", "400": "ok"}
        async with edge(tmp_path, regions=regions, fallbacks=fallbacks) as e:
            # What is wrong with the request itself, no other model mends.
            reply = await ask(e.app, chat("400"))
            assert (reply.status, reply.header(b"x-edge-degraded")) == (400, None)
            for model in ("500", "429"):
                reply = await ask(e.app, chat(model))
                assert (reply.status, reply.header(b"x-edge-degraded")) == (200, b"model=ok"), model
                assert e.lines.requests[-1]["model"] == "ok"
            assert second.chats[-1].model == "ok"


ODD = {
    "a number out of range": b'"z":1e400',
    "a long number": b'"z":' + b"9" * 400,
    "deep": b'"z":' + b"[" * 500 + b"]" * 500,
    "large": b'"z":1e400,"y":"' + b"x" * 2 * AT_ONCE_BYTES + b'"',
    "repeated": b'"z":1e400,"mod\\u0065l":"500","y":"' + b"x" * 2 * AT_ONCE_BYTES + b'","max_tokens":100',
}
"""What the proxy passes on, and a parser would refuse or write otherwise."""


@pytest.mark.parametrize("kind", ODD)
async def test_whatever_was_let_in_goes_on_to_the_fallback_as_it_was_written(tmp_path: Path, kind: str) -> None:
    async with edge(tmp_path, fallbacks={"500": "ok"}) as e:
        sent = b'{"messages":[],"model":"500",%b}' % ODD[kind]
        reply = await ask(e.app, sent)
        assert (reply.status, reply.header(b"x-edge-degraded")) == (200, b"model=ok")
        served = next(seen.body for seen in (*e.near.chats, *e.far.chats) if b'"model":"ok"' in seen.body)
        assert b"500" not in served.replace(b"9" * 400, b"")
        assert ODD[kind].partition(b',"mod')[0] in served


@pytest.mark.parametrize("kind", ODD)
async def test_whatever_was_let_in_is_made_shorter_as_it_was_written(tmp_path: Path, kind: str) -> None:
    async with edge(tmp_path) as e:
        sent = b'{"max_completion_tokens":null,"max_tokens":90,"model":"short-of-memory",%b}' % ODD[kind].replace(
            b"500", b"short-of-memory"
        )
        reply = await ask(e.app, sent, headers={"x-edge-degrade": "allow"})
        assert (reply.status, reply.header(b"x-edge-degraded")) == (200, b"max_tokens=8")
        served = next(seen.body for seen in (*e.near.chats, *e.far.chats) if b'"max_tokens":8' in seen.body)
        assert b'"max_tokens":90' not in served and b'"max_tokens":100' not in served
        assert b'"max_completion_tokens":null' in served
        assert ODD[kind].partition(b',"mod')[0] in served


async def test_where_the_fallback_fails_too_the_first_refusal_is_told(tmp_path: Path) -> None:
    async with edge(tmp_path, fallbacks={"429": "500"}) as e:
        reply = await ask(e.app, chat("429"))
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert reply.header(b"x-edge-degraded") is None


async def test_nodes_that_asked_for_a_pause_get_it(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("429"))
        before = len(e.near.chats) + len(e.far.chats)
        reply = await ask(e.app, chat("429"))
        assert (reply.status, reply.error["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(reply.header(b"retry-after-ms") or 0) <= 6500
        assert reply.header(b"retry-after") == b"7"
        assert len(e.near.chats) + len(e.far.chats) == before


async def test_a_node_that_cannot_meet_one_requests_budget_is_asked_for_others_at_once(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        refused = await ask(e.app, chat("over-budget"))
        assert (refused.status, refused.error["code"]) == (429, "latency_budget_exceeded")
        assert refused.header(b"x-should-retry") == b"false"
        assert refused.header(b"retry-after") is None
        assert (len(e.near.chats), len(e.far.chats)) == (1, 1), "a faster node may meet it"
        reply = await ask(e.app, chat("ok"))
        assert (reply.status, reply.header(b"x-edge-region")) == (200, b"near")


async def test_what_a_client_asks_to_be_refused_for_is_no_failure_of_service_or_nodes(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        asked = {"x-latency-budget-ms": "1", "x-latency-policy": "refuse", "x-request-id": "r-1"}
        assert (await ask(e.app, chat("over-budget"), headers=asked)).status == 429
        metrics = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert set(re.findall(r"^edgeproxy_node_failures_total\{.*\} (\S+)$", metrics, re.MULTILINE)) == {"0.0"}
        assert not re.findall(r"^edgeproxy_budget_burn_ratio\{", metrics, re.MULTILINE), "nothing that counts"
        seen = (await ask(e.admin, method="GET", path="/admin/requests/r-1")).json
        assert (seen["kind"], seen["failures"]) == ("refused", ["near-1: over_budget", "far-1: over_budget"])
        told = render((await ask(e.admin, method="GET", path="/admin/decisions/r-1")).json)
        assert "refused by near-1, as the client asked" in told and "failed:" not in told


@pytest.mark.parametrize("own", ["1", "3600000"])
async def test_a_client_cannot_move_what_the_operator_sees_with_a_budget_of_its_own(tmp_path: Path, own: str) -> None:
    async with edge(tmp_path, budget_ms=60_000) as e:
        assert (await ask(e.app, chat("ok"), headers={"x-latency-budget-ms": own})).status == 200
        metrics = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert 'edgeproxy_budget_total{outcome="within"} 1.0' in metrics


async def hot(e: Edge) -> None:
    for node in e.fleet.nodes:
        busy(node, now())


async def test_while_all_are_hot_a_request_is_held_and_goes_to_the_first_that_turns_cold(tmp_path: Path) -> None:
    async with edge(tmp_path, budget_ms=60_000) as e:
        slow = begin(e.app, chat("slow"))
        await e.near.until(lambda: bool(e.near.chats))
        await hot(e)
        held = begin(e.app, chat("ok"))
        await asyncio.sleep(0)
        busy(e.fleet.nodes[0], now(), waiting=0)
        e.fleet.nodes[0].outlook.load.free_at = 0.0
        e.near.gate.set()
        reply = await held.done()
        assert (reply.status, reply.header(b"x-edge-region")) == (200, b"near")
        assert (await slow.done()).status == 200
        record = next(line for line in e.lines.requests if line["model"] == "ok")
        assert 0 < record["hold_s"] <= 0.3


async def test_a_hold_ends_with_the_requests_budget_and_then_it_takes_the_least_queue(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await hot(e)
        reply = await ask(e.app, chat("ok"), headers={"x-latency-budget-ms": "20"})
        assert reply.status == 200
        assert 0 < e.lines.requests[-1]["hold_s"] < 0.25


@pytest.mark.parametrize(("own", "lasts"), [(None, 0.15), (0.02, 0.02), (3600.0, 0.15)])
def test_a_request_is_held_no_longer_than_the_objective_allows(own: float | None, lasts: float) -> None:
    call = Call(b"r-1", 10.0, "h1", None)
    call.budget_s, call.own_budget_s = 0.15, own
    assert hold_until(call) == 10.0 + lasts


async def test_a_client_that_leaves_while_held_leaves_nothing_behind(tmp_path: Path) -> None:
    async with edge(tmp_path, budget_ms=60_000) as e:
        await hot(e)
        held = begin(e.app, chat("ok"))
        await asyncio.sleep(0.02)
        held.leave()
        await held.done()
        assert e.lines.requests[-1]["client_gone"]
        assert e.near.chats == [] and e.far.chats == []
        assert all(node.outlook.load.pending == 0 for node in e.fleet.nodes)


async def test_a_pinned_request_refused_for_memory_is_told_of_another_region(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, chat("short-of-memory"), headers={"x-edge-region": "near"})
        assert reply.status == 429
        assert reply.error["recovery"]["retry_region"] == "far"
        e.fleet.nodes[0].breaker.not_before = 0.0
        reply = await ask(e.app, chat("short-of-memory"), headers={"x-edge-region": "near"}, client="192.0.2.7")
        assert "retry_region" not in reply.error["recovery"]
