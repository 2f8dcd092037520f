"""What is counted can be scraped, and the share within the budget can be computed from it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from edgeproxy.observe.burn import Burn
from edgeproxy.observe.fleet import NodeView
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.observe.requests import FIRST_TOKEN_EDGES
from edgeproxy.observe.telemetry import telemetry_families
from edgeproxy.observe.trace import Tracer
from edgeproxy.protocol.node.instruments import GAP_BUCKETS, Durations, Gpu, Instruments, Link
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
    traces = Tracer(SimpleSpanProcessor(InMemorySpanExporter()), "1", Random(1))
    metrics = Metrics("1", list, status, Burn(0.95), telemetry=partial(telemetry_families, Log(), traces))
    lines = metrics.exposition()[0].decode().splitlines()
    assert sorted(documented) == sorted(tuple(line.split()[2:4]) for line in lines if line.startswith("# TYPE"))


def test_what_became_of_quic_connections_is_told_from_the_start() -> None:
    counts = QuicCounts()
    before = samples(Metrics("1", list, quic=counts))
    mine = {key: value for key, value in before.items() if key[0].startswith("edgeproxy_quic_")}
    assert set(mine.values()) == {0}
    counts.handshakes["refused_limit"] += 1
    counts.ended["us", "H3_EXCESSIVE_LOAD"] += 2
    counts.ended["peer", "other"] += 1
    counts.retries, counts.resets, counts.migrations, counts.lost = 1, 2, 3, 4
    counts.open = lambda: 7
    after = samples(Metrics("1", list, quic=counts))
    assert after.keys() == before.keys()
    assert after["edgeproxy_quic_handshakes_total", (("outcome", "refused_limit"),)] == 1
    assert after["edgeproxy_quic_closes_total", (("by", "us"), ("error", "H3_EXCESSIVE_LOAD"))] == 2
    assert after["edgeproxy_quic_closes_total", (("by", "peer"), ("error", "other"))] == 1
    totals = [
        after[f"edgeproxy_quic_{name}_total", ()]
        for name in ("retries", "stateless_resets", "migrations", "packets_lost")
    ]
    assert totals == [1, 2, 3, 4]
    assert after["edgeproxy_quic_connections", ()] == 7


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


def test_a_bucket_of_first_tokens_names_the_last_request_that_fell_into_it() -> None:
    metrics = Metrics("1", list)
    waits = {"a": 0.03, "b": 0.035, "c": 9.0}
    metrics.recorded([record(request_id=name, first_token_s=seconds, total_s=9.5) for name, seconds in waits.items()])
    text, kind = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    for name in ("edgeproxy_first_token_seconds", "gen_ai_server_time_to_first_token_seconds"):
        (family,) = [one for one in openmetrics(text.decode()) if one.name == name]  # type: ignore[no-untyped-call]
        found = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar is not None}
        assert {edge: one.labels for edge, one in found.items()} == {
            "0.04": {"request_id": "b"},
            "10.0": {"request_id": "c"},
        }
        assert found["0.04"].value == 0.035
    assert b"request_id" not in metrics.exposition()[0], "Prometheus' own text has no place for them"


def test_requests_are_counted_by_what_became_of_them() -> None:
    metrics = Metrics("1", list, connections={"accepted": 3})
    metrics.recorded(
        [
            record(protocol="h3", reason="faster", expected_s=0.1, shown_s=0.125, cached_tokens=40, hold_s=0.01),
            record(first_token_s=0.9),
            record(protocol="h1", first_token_s=None, status=404, code="model_not_found", reason=None, region=None),
        ]
    )
    metrics.resumed("exact")
    metrics.hedged("won")
    found = samples(metrics)
    for name, label, value, count in (
        ("decisions_total", "reason", "faster", 1),
        ("decisions_total", "reason", "home", 1),
        ("requests_by_protocol_total", "protocol", "h1", 1),
        ("requests_by_protocol_total", "protocol", "h2", 1),
        ("errors_total", "code", "model_not_found", 1),
        ("budget_total", "outcome", "within", 1),
        ("budget_total", "outcome", "over", 1),
        ("resumes_total", "outcome", "exact", 1),
        ("hedges_total", "outcome", "won", 1),
        ("connections_total", "outcome", "accepted", 3),
        ("term_seconds_sum", "term", "hold", 0.01),
        ("forecast_error_seconds_sum", "region", "near", 0.025),
        ("forecast_error_ratio_sum", "region", "near", 0.2),
    ):
        assert found[f"edgeproxy_{name}", ((label, value),)] == pytest.approx(count), name
    tokens = {kind: found["edgeproxy_tokens_total", (("kind", kind), ("model", "m"))] for kind in ("input", "cached")}
    assert tokens == {"input": 100, "cached": 40}, "of answers"
    model = (("gen_ai_request_model", "m"),)
    assert found["gen_ai_server_time_per_output_token_seconds_count", model] == 2
    assert found["gen_ai_server_request_duration_seconds_sum", model] == pytest.approx(1.2)


def test_when_the_certificate_ends_and_that_files_cannot_be_used_are_told() -> None:
    status = ReloadStatus(0.0, failures=1, error="regions.yaml: unknown key", certificate_not_after=1_760_000_000.0)
    found = samples(Metrics("1", list, status))
    assert found["edgeproxy_certificate_not_after_seconds", ()] == 1_760_000_000.0
    assert found["edgeproxy_config_stale", ()] == 1
    assert found["edgeproxy_config_reloads_total", (("outcome", "refused"),)] == 1


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


def test_what_nodes_measure_is_told_with_their_names_and_nothing_of_those_that_do_not_tell() -> None:
    gpu = Gpu(failed=True, link=Link(4, 8), possible=Link(5, 16))
    gap = Durations((0, 0, 3, 1, *([0] * (GAP_BUCKETS - 5)), 1), 9.0)
    measured = Instruments(susi=0.9, gap=gap, generated_tokens=12, aborts=0, busy_s=7.5, gpu=gpu)
    report = NodeReport(NodeState.READY, "m", "n", 1, 2, 3000, 100, 50, 25, 16, 1000.0, 1.0, 1, 0.0)
    nodes = [replace(node("a-1", "a", 0.01), report=report, instruments=measured), node("b-1", "b", 0.02)]
    found = samples(Metrics("1", lambda: nodes))
    place = (("node", "a-1"), ("region", "a"))
    for name, value in (
        ("running", 1),
        ("waiting", 2),
        ("kv_used_ratio", 0.25),
        ("susi_ratio", 0.9),
        ("step_gap_seconds_count", 5),
        ("step_gap_seconds_sum", 9.0),
        ("busy_seconds_total", 7.5),
        ("generated_tokens_total", 12),
        ("aborts_total", 0),
        ("gpu_fault", 1),
    ):
        assert found[f"edgeproxy_node_{name}", place] == value, name
    links = {labels[2][1]: value for (name, labels), value in found.items() if name == "edgeproxy_node_gpu_pcie_lanes"}
    assert links == {"seen": 8, "possible": 16}
    bounds = {labels[0][1]: value for (name, labels), value in found.items() if name.endswith("gap_seconds_bucket")}
    assert (bounds["4e-06"], bounds["8e-06"], bounds["4.194304"], bounds["+Inf"]) == (3, 4, 4, 5)
    silent = {name for name, labels in found if ("node", "b-1") in labels}
    counted = {"edgeproxy_node_failures_total", "edgeproxy_node_silences_total"}
    assert silent == {"edgeproxy_in_flight", "edgeproxy_node_ready", *counted}
    assert ("edgeproxy_node_preemptions_total", place) not in found


def test_what_is_known_beforehand_is_told_at_zero_so_that_the_first_event_is_a_rise() -> None:
    """Prometheus sees no increase where a series begins at 1."""
    metrics = Metrics("1", lambda: [node("a-1", "a", None), node("b-1", "b", None)])
    before = samples(metrics)
    metrics.failed("a-1", "cut")
    metrics.resumed("exact")
    metrics.hedged("won")
    failed = record(region="b", code="no_node", protocol="h3", reason="none", wait_s=None, first_token_s=None)
    metrics.recorded([failed, record(region="a", expected_s=0.1, shown_s=0.2)])
    risen = {key for key, value in samples(metrics).items() if value and key[0].endswith(("_total", "_count"))}
    begun = {name for name, labels in risen if (name, labels) not in before}
    by_model = {"edgeproxy_requests_total", "edgeproxy_tokens_total"}
    assert {name for name in begun if not name.startswith("gen_ai_")} == by_model, "what only requests name"
    assert ("edgeproxy_node_failures_total", (("node", "a-1"), ("reason", "cut"))) in risen & before.keys()


def test_two_proxies_in_one_process_do_not_share_counts() -> None:
    one, other = Metrics("1", list), Metrics("1", list)
    one.recorded([record(client_gone=True)])
    assert samples(other)["edgeproxy_client_disconnects_total", ()] == 0


def test_every_budget_of_the_operators_is_an_edge_of_what_is_charged_to_it() -> None:
    metrics = Metrics("1", list, budgets=[0.4, 0.15, 1.7, *(0.01 + number / 1e4 for number in range(1, 99))])
    metrics.recorded([record(wait_s=0.3, hold_s=0.01)])
    lines = metrics.exposition()[0].decode().splitlines()
    for name in (
        "edgeproxy_first_token_seconds",
        "gen_ai_server_time_to_first_token_seconds",
        "edgeproxy_term_seconds",
    ):
        edges = {line.split('le="')[1].split('"')[0] for line in lines if line.startswith(f"{name}_bucket")}
        assert {"0.15", "0.4", "1.7"} <= edges, "the first ones, however many there are"
        assert len(edges) < 40, name
