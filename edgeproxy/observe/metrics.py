"""Prometheus metrics, every name in one place. Label values come from the configuration or from short tables.

Counting is done on plain integers, because everything happens on one event loop: prometheus_client's own counters take
a lock each time and walk through all buckets, 3 of the 19 µs that a request may cost here. A scrape turns them into the
library's families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeproxy.observe.reloads import ReloadStatus

CONTENT_TYPE = CONTENT_TYPE_LATEST
BUDGET_S = 0.150
# OpenTelemetry's edges for a first token have none at the budget, so that the share within it could not be computed.
FIRST_TOKEN_EDGES = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.125,
    BUDGET_S,
    0.2,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    10.0,
)
FORECAST_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SHARE_EDGES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
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
    """Seconds throughout. What the fleet knows anyway is asked of `nodes` at the scrape."""

    def __init__(
        self, version: str, nodes: Callable[[], Iterable[NodeView]], reloads: ReloadStatus | None = None
    ) -> None:
        self._version = version
        self._nodes = nodes
        self._reloads = reloads or ReloadStatus(0.0)
        self._requests: dict[tuple[str, str, int], int] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._first_token: dict[str, _Histogram] = {}
        self._edge = _Histogram(EDGE_EDGES)
        self._decisions: dict[str, int] = {}
        self._forecast_error: dict[str, _Histogram] = {}
        self._forecast_share: dict[str, _Histogram] = {}
        self._disconnects = 0
        self._resumes: dict[str, int] = {}
        self._hedges: dict[str, int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Families(self._families))

    def ended(self, model: str, region: str | None, status: int) -> None:
        key = (model, region or NO_REGION, status)
        self._requests[key] = self._requests.get(key, 0) + 1

    def first_token(self, region: str, seconds: float) -> None:
        histogram = self._first_token.get(region)
        if histogram is None:
            histogram = self._first_token[region] = _Histogram(FIRST_TOKEN_EDGES)
        histogram.observe(seconds)

    def edge(self, seconds: float) -> None:
        self._edge.observe(seconds)

    def decided(self, reason: str) -> None:
        self._decisions[reason] = self._decisions.get(reason, 0) + 1

    def forecast(self, region: str, expected: float, actual: float) -> None:
        """Of a first token, from sending it to a node: how long was foretold, and how long it took."""
        error = self._forecast_error.get(region)
        if error is None:
            error = self._forecast_error[region] = _Histogram(FORECAST_EDGES)
            self._forecast_share[region] = _Histogram(SHARE_EDGES)
        missed = abs(expected - actual)
        error.observe(missed)
        if actual > 0:
            self._forecast_share[region].observe(missed / actual)

    def failed(self, node: str, reason: str) -> None:
        key = (node, reason)
        self._failures[key] = self._failures.get(key, 0) + 1

    def resumed(self, outcome: str) -> None:
        """`outcome`: exact, approximate or failed."""
        self._resumes[outcome] = self._resumes.get(outcome, 0) + 1

    def hedged(self, outcome: str) -> None:
        """`outcome` of a second copy: won, lost, failed or abandoned."""
        self._hedges[outcome] = self._hedges.get(outcome, 0) + 1

    def disconnected(self) -> None:
        self._disconnects += 1

    def exposition(self) -> bytes:
        """Prometheus text format, of media type CONTENT_TYPE."""
        return generate_latest(self._registry)

    def _families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "edgeproxy_requests", "Chat requests that ended", labels=["model", "region", "status"]
        )
        for (model, region, status), count in self._requests.items():
            requests.add_metric([model, region, str(status)], count)
        failures = CounterMetricFamily(
            "edgeproxy_node_failures", "Attempts that a node failed or refused", labels=["node", "reason"]
        )
        for labels, count in self._failures.items():
            failures.add_metric(labels, count)
        first_token = HistogramMetricFamily(
            "edgeproxy_first_token_seconds",
            "From a request's first byte to its first content at the proxy",
            labels=["region"],
        )
        for region, histogram in self._first_token.items():
            first_token.add_metric([region], histogram.buckets(), histogram.sum)
        edge = HistogramMetricFamily(
            "edgeproxy_edge_seconds", "From a request's first byte to its sending to a node: the proxy's own time"
        )
        edge.add_metric([], self._edge.buckets(), self._edge.sum)
        yield from self._routing()
        disconnects = CounterMetricFamily(
            "edgeproxy_client_disconnects", "Clients that left before the end of their answer", self._disconnects
        )
        resumes = CounterMetricFamily(
            "edgeproxy_resumes", "Streams whose node broke off, and whether another went on", labels=["outcome"]
        )
        for outcome, count in self._resumes.items():
            resumes.add_metric([outcome], count)
        build = GaugeMetricFamily("edgeproxy_build_info", "Constant 1", labels=["version"])
        build.add_metric([self._version], 1)
        yield from (requests, failures, first_token, edge, disconnects, resumes, build)
        yield from _configuration(self._reloads)
        yield from _fleet(list(self._nodes()))

    def _routing(self) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "edgeproxy_decisions", "Requests by why their node was chosen", labels=["reason"]
        )
        for reason, count in self._decisions.items():
            decisions.add_metric([reason], count)
        error = HistogramMetricFamily(
            "edgeproxy_forecast_error_seconds",
            "Between a first token's forecast, when the request was sent to the node that answered, and its coming",
            labels=["region"],
        )
        share = HistogramMetricFamily(
            "edgeproxy_forecast_error_ratio", "The same as a share of the time that it took", labels=["region"]
        )
        for family, found in ((error, self._forecast_error), (share, self._forecast_share)):
            for region, histogram in found.items():
                family.add_metric([region], histogram.buckets(), histogram.sum)
        hedges = CounterMetricFamily(
            "edgeproxy_hedges", "Second copies of late requests, and whether they answered", labels=["outcome"]
        )
        for outcome, count in self._hedges.items():
            hedges.add_metric([outcome], count)
        yield from (decisions, error, share, hedges)


def _configuration(status: ReloadStatus) -> Iterator[Metric]:
    reloads = CounterMetricFamily("edgeproxy_config_reloads", "Times the files were read again", labels=["outcome"])
    reloads.add_metric(["applied"], status.reloads)
    reloads.add_metric(["refused"], status.failures)
    stale = GaugeMetricFamily("edgeproxy_config_stale", "1 while the files cannot be used and older ones are in force")
    stale.add_metric([], float(status.error is not None))
    yield from (reloads, stale)
    if status.certificate_not_after is not None:
        end = GaugeMetricFamily(
            "edgeproxy_certificate_not_after_seconds", "Unix time at which the public certificate in force expires"
        )
        end.add_metric([], status.certificate_not_after)
        yield end


def _fleet(nodes: Sequence[NodeView]) -> Iterator[Metric]:
    in_flight = GaugeMetricFamily("edgeproxy_in_flight", "Requests under way at a node", labels=["node", "region"])
    ready = GaugeMetricFamily("edgeproxy_node_ready", "1 while a node is ready", labels=["node", "region"])
    rtt = GaugeMetricFamily("edgeproxy_region_rtt_seconds", "Round trip to a region's nearest node", labels=["region"])
    nearest: dict[str, float] = {}
    for node in nodes:
        in_flight.add_metric([node.name, node.region], node.in_flight)
        ready.add_metric([node.name, node.region], float(node.ready))
        if node.rtt_s is not None:
            nearest[node.region] = min(node.rtt_s, nearest.get(node.region, node.rtt_s))
    for region, seconds in nearest.items():
        rtt.add_metric([region], seconds)
    yield from (in_flight, ready, rtt)


class _Histogram:
    __slots__ = ("_counts", "_edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """`edges`: upper bounds, each inclusive, ascending."""
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        bounds = [*map(str, self._edges), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


class _Families(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()
