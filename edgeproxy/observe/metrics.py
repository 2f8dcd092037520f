"""Prometheus metrics. Label values come from the configuration or from short tables; every name is in docs/metrics.md.

Counting is done on plain integers (histogram.py). A scrape turns them into the library's families.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from operator import sub
from time import time
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeproxy.observe.burn import Burn, burn_families
from edgeproxy.observe.core import core_families
from edgeproxy.observe.cost import Produced, cost_families
from edgeproxy.observe.fleet import NodeView, fleet_families
from edgeproxy.observe.histogram import Histogram
from edgeproxy.observe.known import FAILURES, HEDGES, REASONS, RESUMES, with_zeros
from edgeproxy.observe.quic import QuicCounts, quic_families
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.observe.requests import Requests, by, column, having, known, tally

FORECAST_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SHARE_EDGES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
EDGE_EDGES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1)
CONNECTION_OUTCOMES = ("accepted", "refused", "gave_way", "handshake_failed", "accept_failed")
NO_REGION = "none"
"""Region label of a request that no node answered."""


class Metrics:
    """Seconds throughout. What the fleet knows anyway is asked of `nodes` at the scrape."""

    def __init__(
        self,
        version: str,
        nodes: Callable[[], Iterable[NodeView]],
        reloads: ReloadStatus | None = None,
        burn: Burn | None = None,
        connections: Mapping[str, int] | None = None,
        budgets: Iterable[float] = (),
        telemetry: Callable[[], Iterable[Metric]] = tuple,
        quic: QuicCounts | None = None,
    ) -> None:
        """`connections`: how many the listeners have seen, by what became of them. `budgets`: those that configuration
        and keys name, in seconds, those that matter most first. `telemetry`: of logs and traces."""
        self._version = version
        self._nodes = nodes
        self._reloads = reloads or ReloadStatus(0.0)
        self._burn = burn
        self._telemetry = telemetry
        self._connections = {} if connections is None else connections
        self._quic = QuicCounts() if quic is None else quic
        self._requests: dict[tuple[str, str | None, int], int] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._edge = Histogram(EDGE_EDGES)
        self._decisions: dict[str, int] = {}
        self._forecast_error: dict[str, Histogram] = {}
        self._forecast_share: dict[str, Histogram] = {}
        self._disconnects = 0
        self.requests = Requests(budgets)
        """What the requests' records say."""
        self.produced = Produced(self._reloads.loaded_at)
        self._resumes: dict[str, int] = {}
        self._hedges: dict[str, int] = {}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Families(self._families))

    def recorded(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Of requests that have ended: their lines in the log."""
        places = zip(column(records, "model"), column(records, "region"), column(records, "status"), strict=True)
        tally(self._requests, places)
        tally(self._decisions, known(records, "reason"))
        self._disconnects += sum(column(records, "client_gone"))
        self._edge.observe(known(records, "edge_s"))
        for region, found in by("region", records):
            for model, some in by("model", found):
                tokens = sum(known(some, "completion_tokens"))
                if tokens:
                    self.produced.add(model, region, tokens, records[-1]["time"])
            self._forecast(region, having(having(found, "expected_s"), "shown_s"))
        self.requests.add(records)

    def _forecast(self, region: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Of first tokens, from sending to a node: how long was foretold, and how long it took."""
        if not records:
            return
        error = self._forecast_error.get(region)
        if error is None:
            error = self._forecast_error[region] = Histogram(FORECAST_EDGES)
            self._forecast_share[region] = Histogram(SHARE_EDGES)
        shown = column(records, "shown_s")
        errors = list(map(abs, map(sub, column(records, "expected_s"), shown)))
        error.observe(errors)
        self._forecast_share[region].observe([off / took for off, took in zip(errors, shown, strict=True) if took > 0])

    def failed(self, node: str, reason: str) -> None:
        key = (node, reason)
        self._failures[key] = self._failures.get(key, 0) + 1

    def resumed(self, outcome: str) -> None:
        """`outcome`: exact, approximate or failed."""
        self._resumes[outcome] = self._resumes.get(outcome, 0) + 1

    def hedged(self, outcome: str) -> None:
        """`outcome` of a second copy: won, lost, failed or abandoned."""
        self._hedges[outcome] = self._hedges.get(outcome, 0) + 1

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Content and media type: OpenMetrics, which has exemplars, for who accepts it, else Prometheus' text."""
        try:
            encode, kind = choose_encoder(accept)
        except TypeError:  # the library compares a version that is no number with numbers
            encode, kind = choose_encoder("")
        return encode(self._registry), kind

    def _families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "edgeproxy_requests", "Chat requests that ended", labels=["model", "region", "status"]
        )
        for (model, region, status), count in self._requests.items():
            requests.add_metric([model, region or NO_REGION, str(status)], count)
        failures = CounterMetricFamily(
            "edgeproxy_node_failures", "Attempts that a node failed or refused", labels=["node", "reason"]
        )
        nodes = list(self._nodes())
        regions = tuple(dict.fromkeys(node.region for node in nodes))
        for labels, count in with_zeros(self._failures, product([node.name for node in nodes], FAILURES)).items():
            failures.add_metric(labels, count)
        edge = HistogramMetricFamily(
            "edgeproxy_edge_seconds", "From the byte that completes a request to its sending: the proxy's own time"
        )
        edge.add_metric([], self._edge.buckets(), self._edge.sum)
        yield from self._routing(regions)
        disconnects = CounterMetricFamily(
            "edgeproxy_client_disconnects", "Clients that left before the end of their answer", self._disconnects
        )
        resumes = CounterMetricFamily(
            "edgeproxy_resumes", "Streams whose node broke off, and whether another went on", labels=["outcome"]
        )
        for outcome, count in with_zeros(self._resumes, RESUMES).items():
            resumes.add_metric([outcome], count)
        build = GaugeMetricFamily("edgeproxy_build_info", "Constant 1", labels=["version"])
        build.add_metric([self._version], 1)
        yield from (requests, failures, edge, disconnects, resumes, build)
        yield from self.requests.families(regions)
        if self._burn is not None:
            yield from burn_families(self._burn, time())
        yield from _accepted(self._connections)
        yield from quic_families(self._quic)
        yield from _configuration(self._reloads)
        yield from core_families()
        yield from self._telemetry()
        yield from fleet_families(nodes)
        yield from cost_families(nodes, self.produced.window(time()))

    def _routing(self, regions: Sequence[str]) -> Iterator[Metric]:
        decisions = CounterMetricFamily(
            "edgeproxy_decisions", "Requests by why their node was chosen", labels=["reason"]
        )
        for reason, count in with_zeros(self._decisions, REASONS).items():
            decisions.add_metric([reason], count)
        error = HistogramMetricFamily(
            "edgeproxy_forecast_error_seconds",
            "Between a first token's forecast, when the request was sent to the node that answered, and its coming",
            labels=["region"],
        )
        share = HistogramMetricFamily(
            "edgeproxy_forecast_error_ratio", "The same as a share of the time that it took", labels=["region"]
        )
        told = ((error, self._forecast_error, FORECAST_EDGES), (share, self._forecast_share, SHARE_EDGES))
        for family, found, edges in told:
            for region, histogram in {**{region: Histogram(edges) for region in regions}, **found}.items():
                family.add_metric([region], histogram.buckets(), histogram.sum)
        hedges = CounterMetricFamily(
            "edgeproxy_hedges", "Second copies of late requests, and whether they answered", labels=["outcome"]
        )
        for outcome, count in with_zeros(self._hedges, HEDGES).items():
            hedges.add_metric([outcome], count)
        yield from (decisions, error, share, hedges)


def _accepted(counts: Mapping[str, int]) -> Iterator[Metric]:
    connections = CounterMetricFamily(
        "edgeproxy_connections", "TCP connections, by what became of them", labels=["outcome"]
    )
    for outcome in CONNECTION_OUTCOMES:
        connections.add_metric([outcome], counts.get(outcome, 0))
    yield connections


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


class _Families(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()
