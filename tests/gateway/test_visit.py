"""What the estimates learn from an answer, and that nothing under way is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.config import GatewayLimits
from edgeproxy.protocol.node.blocks import Change, Snapshot
from tests.fake_exchange import PREFIX
from tests.gateway.drive import ask, begin, chat, edge
from tests.routing.fleet import depths

USAGE_TOKENS = 7
"""Of any prompt, as the scripted nodes count."""


async def test_an_answer_teaches_its_node_and_no_other(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        near, far = e.fleet.nodes
        for stream in (False, True):
            assert (await ask(e.app, chat("ok", stream=stream))).status == 200
        assert (near.outlook.pace.samples, far.outlook.pace.samples) == (2, 0)
        record = e.lines.requests[-1]
        assert record["expected_s"] > 0 and record["shown_s"] > 0 and record["reason"] == "home"
        text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
        assert 'edgeproxy_decisions_total{reason="home"} 2.0' in text
        assert 'edgeproxy_forecast_error_seconds_count{region="near"} 2.0' in text
        assert 'edgeproxy_forecast_error_ratio_count{region="near"} 2.0' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_taken_to_be_as_long_as_nodes_have_counted_others_like_it(
    tmp_path: Path, stream: bool
) -> None:
    """Also where a node says so at the end of its stream only."""
    options = {"stream_options": {"include_usage": True}} if stream else {}
    async with edge(tmp_path) as e:
        for name in ("first", "second"):
            await ask(e.app, chat("ok", stream=stream, **options), headers={"x-request-id": name})
        told = [
            (await ask(e.admin, method="GET", path=f"/admin/decisions/{name}")).json for name in ("first", "second")
        ]
        assert told[0]["prompt_tokens"] > 14
        assert told[1]["prompt_tokens"] == pytest.approx(USAGE_TOKENS, abs=3)


async def test_a_prompt_that_its_node_evicts_is_no_longer_taken_to_be_there(tmp_path: Path) -> None:
    long = chat("ok") | {"messages": [{"role": "user", "content": "What was said before is said again. " * 40}]}
    async with edge(tmp_path) as e:
        near = e.fleet.nodes[0]
        assert (await ask(e.app, long)).status == 200
        list(near.evictions.apply(Snapshot("run", 0, "bits", 16, 0, 1, [(PREFIX.tail, b"")])))
        ((names, depth),) = near.evictions.apply(Change("run", 1, [(False, PREFIX.tail, b"")]))
        assert (depths(e.fleet.prefixes, names), depth) == ({near.slot: len(names)}, 0)


@pytest.mark.parametrize("model", ["500", "close-at-once", "cut-json", "400", "429", "garbage", "error-event"])
async def test_what_failed_or_was_refused_teaches_nothing(tmp_path: Path, model: str) -> None:
    async with edge(tmp_path, GatewayLimits(attempts=1)) as e:
        near = e.fleet.nodes[0]
        await ask(e.app, chat(model, stream=model == "error-event"))
        assert near.outlook.pace.samples == 0
        assert near.outlook.load.pending == 0 and near.outlook.load.running == 0


async def test_requests_under_way_count_and_their_end_is_seen_however_it_comes(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        near = e.fleet.nodes[0]
        under_way = [begin(e.app, chat("slow", stream=True)) for _ in range(3)]
        await e.near.until(lambda: len(e.near.chats) == 3)
        assert near.outlook.load.pending == 3
        under_way[0].leave()
        await under_way[0].done()
        assert near.outlook.load.pending == 2
        e.near.gate.set()
        for one in under_way[1:]:
            assert (await one.done()).status == 200
        assert (near.outlook.load.pending, near.outlook.load.running, near.in_flight) == (0, 0, 0)


async def test_decisions_are_kept_with_their_terms_and_can_be_asked_for(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["500"] = "ok"
        await ask(e.app, chat("ok"), headers={"x-request-id": "first"})
        await ask(e.app, chat("500"), headers={"x-request-id": "second"})
        newest, oldest = (await ask(e.admin, method="GET", path="/admin/decisions")).json["decisions"]
        assert (newest["request_id"], oldest["request_id"]) == ("second", "first")
        assert oldest["chosen"]["node"] == "near-1" and oldest["runner_up"]["node"] == "far-1"
        assert oldest["error_s"] == pytest.approx(oldest["expected_s"] - oldest["actual_s"])
        assert newest["chosen"]["region"] == "near" and newest["region"] == "far" and newest["attempts"] == 2
        terms = ("network_s", "queue_s", "prefill_s", "decode_s")
        assert sum(oldest["chosen"][term] for term in terms) == pytest.approx(oldest["chosen"]["total_s"])
        one = await ask(e.admin, method="GET", path="/admin/decisions/second")
        assert one.json == newest
        assert (await ask(e.admin, method="GET", path="/admin/decisions/none")).status == 404
        assert b"prompt-that-must-not-be-logged" not in one.body
