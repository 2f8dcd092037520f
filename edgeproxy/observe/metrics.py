"""Prometheus metrics, every name in one place. Label values come from the configuration or from the tables here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
BUDGET_S = 0.150
# OpenTelemetry's edges for a first token have none at the budget, so that the share within it could not be computed.
FIRST_TOKEN_EDGES = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, BUDGET_S, 0.2, 0.25, 0.5, 0.75, 1, 2.5, 5, 10)
EDGE_EDGES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
NO_REGION = "none"
"""Region label of a request that no node answered."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node as scrapes and the dashboard see it."""

    name: str
    region: str
    ready: bool
    trouble: str
    """Why it is not ready; empty while it is."""
    breaker: str
    in_flight: int
    rtt_s: float | None
    models: tuple[str, ...]


class Metrics:
    """Counters of the hot path; what the fleet knows anyway is read at the scrape."""

    def __init__(self, version: str, nodes: Callable[[], Iterable[NodeView]]) -> None:
        registry = self.registry = CollectorRegistry()
        self._requests = Counter(
            "edgeproxy_requests", "Chat requests ended", ["model", "region", "status"], registry=registry
        )
        self._first_token = Histogram(
            "edgeproxy_first_token_seconds",
            "From a request's first byte to its first token at the proxy",
            ["region"],
            buckets=FIRST_TOKEN_EDGES,
            registry=registry,
        )
        self._edge = Histogram(
            "edgeproxy_edge_seconds",
            "From a request's first byte to its sending to a node: the proxy's own time",
            buckets=EDGE_EDGES,
            registry=registry,
        )
        self._failures = Counter(
            "edgeproxy_node_failures", "Attempts that a node failed or refused", ["node", "reason"], registry=registry
        )
        self._disconnects = Counter(
            "edgeproxy_client_disconnects", "Clients that left before the end of their answer", registry=registry
        )
        build = Gauge("edgeproxy_build_info", "Constant 1", ["version"], registry=registry)
        build.labels(version).set(1)
        registry.register(_Fleet(nodes))
        self._requests_of: dict[tuple[str, str, int], Counter] = {}
        self._first_token_of: dict[str, Histogram] = {}

    def ended(self, model: str, region: str | None, status: int) -> None:
        key = (model, region or NO_REGION, status)
        counter = self._requests_of.get(key)
        if counter is None:
            counter = self._requests_of[key] = self._requests.labels(key[0], key[1], str(status))
        counter.inc()

    def first_token(self, region: str, seconds: float) -> None:
        histogram = self._first_token_of.get(region)
        if histogram is None:
            histogram = self._first_token_of[region] = self._first_token.labels(region)
        histogram.observe(seconds)

    def edge(self, seconds: float) -> None:
        self._edge.observe(seconds)

    def failed(self, node: str, reason: str) -> None:
        self._failures.labels(node, reason).inc()

    def disconnected(self) -> None:
        self._disconnects.inc()

    def exposition(self) -> bytes:
        return generate_latest(self.registry)


class _Fleet(Collector):
    def __init__(self, nodes: Callable[[], Iterable[NodeView]]) -> None:
        self._nodes = nodes

    def describe(self) -> Iterable[Metric]:
        return ()  # or registering would collect from a fleet that may not have started

    def collect(self) -> Iterator[Metric]:
        nodes = list(self._nodes())
        in_flight = GaugeMetricFamily("edgeproxy_in_flight", "Requests under way at a node", labels=["node", "region"])
        ready = GaugeMetricFamily("edgeproxy_node_ready", "1 while a node is ready", labels=["node", "region"])
        rtt = GaugeMetricFamily(
            "edgeproxy_region_rtt_seconds", "Round trip to a region's nearest node", labels=["region"]
        )
        nearest: dict[str, float] = {}
        for node in nodes:
            in_flight.add_metric([node.name, node.region], node.in_flight)
            ready.add_metric([node.name, node.region], float(node.ready))
            if node.rtt_s is not None:
                nearest[node.region] = min(node.rtt_s, nearest.get(node.region, node.rtt_s))
        for region, seconds in nearest.items():
            rtt.add_metric([region], seconds)
        yield from (in_flight, ready, rtt)
