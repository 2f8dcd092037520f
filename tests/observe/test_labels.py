"""Whatever requests say, a metric has no more series than the configuration and the protocol's own lists have names."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from edgeproxy.observe.known import FAILURES, REASONS
from edgeproxy.routing.budget import Ledger
from tests.fake_behaviours import BEHAVIOURS
from tests.gateway.drive import Edge, ask, chat, edge

MODELS = {*BEHAVIOURS, "near-only", "(pattern)", "unknown"}
BOUNDS: dict[str, set[str]] = {
    "model": MODELS,
    "gen_ai_request_model": MODELS,
    "region": {"near", "far", "none"},
    "node": {"near-1", "far-1"},
    "protocol": {"h1", "h2", "h3"},
    "kind": {"input", "cached", "output"},
    "term": {name for name in Ledger._fields if name != "total"},
    "reason": {*FAILURES, *REASONS},
    "window": {"5m", "30m", "1h", "6h", "3d"},
}
SHORT = {"status": 16, "outcome": 32, "code": 32, "version": 1, "le": 64, "by": 3, "error": 64}
"""Values of the proxy's own lists: how many at most."""


async def scraped(e: Edge) -> dict[str, set[str]]:
    text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
    found = defaultdict[str, set[str]](set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            for label, value in sample.labels.items():
                found[label].add(value)
    return found


async def test_no_label_has_a_value_of_a_clients_making(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for number in range(40):
            made_up = f"made-up-{number}"
            e.near.overrides[f"near-{made_up}"] = "ok"
            headers = {"x-request-id": made_up, "x-session-id": made_up, "x-edge-region": made_up}
            await ask(e.app, chat(made_up), headers={"x-request-id": made_up})
            await ask(e.app, chat("ok", user=made_up), headers=headers)
            await ask(e.app, chat(f"near-{made_up}"))
            await ask(e.app, chat("ok", stream=True), headers={"x-latency-budget-ms": str(number + 1)})
        for model in ("500", "429", "400", "garbage", "cut-json"):
            await ask(e.app, chat(model))
        found = await scraped(e)
        assert set(found) <= set(BOUNDS) | set(SHORT)
        for label, allowed in BOUNDS.items():
            assert found[label] <= allowed, label
        for label, most in SHORT.items():
            assert len(found[label]) <= most, label
        assert not [value for values in found.values() for value in values if "made-up" in value]
