"""What is counted can be scraped, and the share within the budget can be computed from it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from edgeproxy.observe.burn import Burn
from edgeproxy.observe.fleet import NodeView
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.observe.requests import FIRST_TOKEN_EDGES
from edgeproxy.protocol.node.report import NodeReport, NodeState
from edgeproxy.routing.budget import BUDGET_S
from tests.observe.records import record


def node(name: str, region: str, rtt_s: float | None, in_flight: int = 0) -> NodeView:
    return NodeView(name, region, rtt_s is not None, "", "closed", in_flight, rtt_s, ("m",))


def samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.exposition()[0].decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_are_scraped() -> None:
    metrics = Metrics("1.2.3", list)
    metrics.recorded([record(status=status) for status in (200, 200, 502)])
    metrics.recorded([record(model="unknown", region=None, status=404, first_token_s=None, client_gone=True)])
    metrics.failed("near-1", "cut")
    found = samples(metrics)
    request = "edgeproxy_requests_total"
    assert found[request, (("model", "m"), ("region", "near"), ("status", "200"))] == 2
    assert found[request, (("model", "m"), ("region", "near"), ("status", "502"))] == 1
    assert found[request, (("model", "unknown"), ("region", "none"), ("status", "404"))] == 1
    assert found["edgeproxy_node_failures_total", (("node", "near-1"), ("reason", "cut"))] == 1
    assert found["edgeproxy_client_disconnects_total", ()] == 1
    assert found["edgeproxy_build_info", (("version", "1.2.3"),)] == 1


def test_every_name_stands_in_the_table_and_no_other_does() -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    documented = re.findall(r"^\| `((?:edgeproxy|gen_ai)_\w+)` \| (\w+) \|", text, re.MULTILINE)
    status = ReloadStatus(0.0, certificate_not_after=1.0)
    lines = Metrics("1", list, status, Burn(0.95)).exposition()[0].decode().splitlines()
    assert sorted(documented) == sorted(tuple(line.split()[2:4]) for line in lines if line.startswith("# TYPE"))


def test_share_within_the_budget_is_exact() -> None:
    assert BUDGET_S in FIRST_TOKEN_EDGES
    metrics = Metrics("1", list)
    waits = (0.001, 0.149, 0.150, 0.1501, 99.0)
    metrics.recorded([record(first_token_s=seconds - 0.0001, client_s=0.0001) for seconds in waits])
    found = samples(metrics)
    name = "edgeproxy_first_token_seconds"
    assert found[f"{name}_bucket", (("le", "0.15"), ("region", "near"))] == 3
    assert found[f"{name}_bucket", (("le", "10.0"), ("region", "near"))] == 4
    assert found[f"{name}_bucket", (("le", "+Inf"), ("region", "near"))] == 5
    assert found[f"{name}_count", (("region", "near"),)] == 5
    assert abs(found[f"{name}_sum", (("region", "near"),)] - 99.4501) < 1e-9


def test_own_time_is_a_histogram() -> None:
    metrics = Metrics("1", list)
    metrics.recorded([record(edge_s=0.00009), record(edge_s=1.0), record(edge_s=None)])
    found = samples(metrics)
    assert found["edgeproxy_edge_seconds_bucket", (("le", "0.0001"),)] == 1
    assert found["edgeproxy_edge_seconds_count", ()] == 2


def test_fleet_is_read_at_the_scrape() -> None:
    nodes = [node("a-1", "a", 0.040, 3), node("a-2", "a", 0.030), node("b-1", "b", None)]
    found = samples(Metrics("1", lambda: nodes))
    assert found["edgeproxy_region_rtt_seconds", (("region", "a"),)] == 0.030
    assert ("edgeproxy_region_rtt_seconds", (("region", "b"),)) not in found
    assert found["edgeproxy_in_flight", (("node", "a-1"), ("region", "a"))] == 3
    assert found["edgeproxy_node_ready", (("node", "b-1"), ("region", "b"))] == 0


def test_what_to_scale_by_is_told_where_a_node_reports_it() -> None:
    report = NodeReport(NodeState.READY, "m", "n", 1, 2, 3000, 100, 50, 0, 16, 1000.0, 1.0, 1, 0.0)
    fresh = report._replace(waiting_prefill_tokens=0, prefill_tokens_per_s=0.0)
    nodes = [replace(node(name, "a", 0.01), report=told) for name, told in (("a-1", report), ("a-2", fresh))]
    found = samples(Metrics("1", lambda: [*nodes, node("b-1", "b", 0.02)]))
    busy, idle = (("node", "a-1"), ("region", "a")), (("node", "a-2"), ("region", "a"))
    assert found["edgeproxy_node_waiting_tokens", busy] == 3000
    assert found["edgeproxy_node_prefill_tokens_per_second", busy] == 1000
    assert found["edgeproxy_node_queue_seconds", busy] == 3
    assert found["edgeproxy_node_waiting_tokens", idle] == 0
    assert ("edgeproxy_node_prefill_tokens_per_second", idle) not in found
    assert not [name for name, labels in found if ("node", "b-1") in labels and "waiting" in name]


def test_two_proxies_in_one_process_do_not_share_counts() -> None:
    one, other = Metrics("1", list), Metrics("1", list)
    one.recorded([record(client_gone=True)])
    assert samples(other)["edgeproxy_client_disconnects_total", ()] == 0


def test_every_budget_of_the_operators_is_an_edge_of_what_is_charged_to_it() -> None:
    metrics = Metrics("1", list, budgets=[0.4, 0.15, 1.7])
    metrics.recorded([record(wait_s=0.3, hold_s=0.01)])
    lines = metrics.exposition()[0].decode().splitlines()
    for name in (
        "edgeproxy_first_token_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "edgeproxy_term_seconds",
    ):
        edges = {line.split('le="')[1].split('"')[0] for line in lines if line.startswith(f"{name}_bucket")}
        assert {"0.15", "0.4", "1.7"} <= edges, name
