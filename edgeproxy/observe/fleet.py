"""Nodes as scrapes and the dashboard see them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from edgeproxy.observe.instruments import Measured, instrument_families
from edgeproxy.protocol.node.instruments import Instruments
from edgeproxy.protocol.node.report import NodeReport

PATTERN_MODEL = "(pattern)"
"""Label of models that only a pattern of the configuration matches: their names are the clients'."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """Seconds throughout. What a node does not say is None."""

    name: str
    region: str
    ready: bool
    trouble: str
    """Why it is not ready; empty while it is."""
    breaker: str
    in_flight: int
    rtt_s: float | None
    models: tuple[str, ...]
    kind: str = "native"
    standby: bool = False
    rtt_min_s: float | None = None
    """The smallest of five minutes: its distance."""
    report: NodeReport | None = None
    instruments: Instruments | None = None
    price_per_hour: float | None = None
    silences: int = 0
    """How often it gave no sign of life while requests waited."""

    @property
    def queue_s(self) -> float | None:
        """Seconds of prefill that wait: what to scale by."""
        report = self.report
        if report is None or report.prefill_tokens_per_s <= 0:
            return None
        return report.waiting_prefill_tokens / report.prefill_tokens_per_s

    @property
    def kv_used(self) -> float | None:
        """Share of the KV blocks that no other request could have."""
        report = self.report
        if report is None or not report.kv_blocks_total:
            return None
        return 1 - (report.kv_blocks_free + report.kv_blocks_evictable) / report.kv_blocks_total


def fleet_families(nodes: Sequence[NodeView]) -> Iterator[Metric]:
    labels = ["node", "region"]
    in_flight = GaugeMetricFamily("edgeproxy_in_flight", "Requests under way at a node", labels=labels)
    ready = GaugeMetricFamily("edgeproxy_node_ready", "1 while a node is ready", labels=labels)
    queue = GaugeMetricFamily("edgeproxy_node_queue_seconds", "Prefill that waits at a node", labels=labels)
    running = GaugeMetricFamily("edgeproxy_node_running", "Sequences that run at a node", labels=labels)
    queued = GaugeMetricFamily("edgeproxy_node_waiting", "Sequences that wait at a node", labels=labels)
    waiting = GaugeMetricFamily("edgeproxy_node_waiting_tokens", "Prompt tokens that wait at a node", labels=labels)
    rate = GaugeMetricFamily(
        "edgeproxy_node_prefill_tokens_per_second", "At which a node computes prompts of late", labels=labels
    )
    kv_used = GaugeMetricFamily("edgeproxy_node_kv_used_ratio", "Share of a node's KV blocks in use", labels=labels)
    silences = CounterMetricFamily(
        "edgeproxy_node_silences",
        "Times that requests were taken from a node that gave no sign of life",
        labels=labels,
    )
    rtt = GaugeMetricFamily("edgeproxy_region_rtt_seconds", "Round trip to a region's nearest node", labels=["region"])
    nearest: dict[str, float] = {}
    for node in nodes:
        place = [node.name, node.region]
        in_flight.add_metric(place, node.in_flight)
        ready.add_metric(place, float(node.ready))
        silences.add_metric(place, node.silences)
        _add(queue, place, node.queue_s)
        _add(kv_used, place, node.kv_used)
        if node.report is not None:
            running.add_metric(place, node.report.running)
            queued.add_metric(place, node.report.waiting)
            waiting.add_metric(place, node.report.waiting_prefill_tokens)
            _add(rate, place, node.report.prefill_tokens_per_s or None)
        if node.rtt_s is not None:
            nearest[node.region] = min(node.rtt_s, nearest.get(node.region, node.rtt_s))
    for region, seconds in nearest.items():
        rtt.add_metric([region], seconds)
    yield from (in_flight, ready, silences, running, queued, queue, waiting, rate, kv_used, rtt)
    found = [(node.name, node.region, node.instruments) for node in nodes]
    yield from instrument_families([Measured(name, place, own) for name, place, own in found if own is not None])


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)
