"""What native nodes measure of themselves, told again by the proxy: who scrapes it need not reach them, nor have their
token. A counter begins anew when its node does, as Prometheus expects of counters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from edgeproxy.protocol.node.instruments import GAP_BUCKETS, Gpu, Instruments


class Measured(NamedTuple):
    node: str
    region: str
    found: Instruments


_LABELS = ("node", "region")
_GAUGES = (
    ("edgeproxy_node_susi_ratio", "susi", "SUSI: how evenly a node's compute threads are used"),
    ("edgeproxy_node_worker_busy_ratio", "worker_busy", "Of a node's busy time, what its compute threads ran"),
    ("edgeproxy_node_kv_reuse_ratio", "kvr", "KVR: share of a node's KV blocks that were found computed"),
    ("edgeproxy_node_page_faults_per_token", "mpfr", "MPFR: a node's page faults per token"),
    ("edgeproxy_node_wake_seconds", "wake_p50_s", "ILD-wake, the median"),
)
_COUNTERS = (
    ("edgeproxy_node_prefilled_tokens", "prefilled_tokens", "Prompt tokens that a node ran"),
    ("edgeproxy_node_generated_tokens", "generated_tokens", "Tokens of a node's answers"),
    ("edgeproxy_node_aborts", "aborts", "A node's sequences that were ended from outside"),
    ("edgeproxy_node_preemptions", "preemptions", "A node's sequences that gave their blocks up for others"),
    ("edgeproxy_node_kv_blocks_reused", "kv_blocks_reused", "KV blocks that a node's sequences found computed"),
    ("edgeproxy_node_kv_blocks_computed", "kv_blocks_computed", "KV blocks that a node's sequences had to compute"),
    ("edgeproxy_node_page_faults", "page_faults", "Page faults of the threads that make a node's steps"),
    ("edgeproxy_node_busy_seconds", "busy_s", "In which a node's steps ran, gaps between them included"),
)
_GAP_EDGES = (*(str((1 << index) / 1e6) for index in range(GAP_BUCKETS - 1)), "+Inf")


def instrument_families(nodes: Sequence[Measured]) -> Iterator[Metric]:
    for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, field, text in table:
            family = kind(name, text, labels=_LABELS)
            for node, region, found in nodes:
                value = getattr(found, field)
                if value is not None:
                    family.add_metric([node, region], value)
            yield family
    yield _gaps(nodes)
    yield from _gpus([(node, region, found.gpu) for node, region, found in nodes if found.gpu is not None])


def _gaps(nodes: Sequence[Measured]) -> Metric:
    family = HistogramMetricFamily(
        "edgeproxy_node_step_gap_seconds", "ILD-gap: a step's last kernel to the next one's first", labels=_LABELS
    )
    for node, region, found in nodes:
        if found.gap is not None:
            buckets = list(zip(_GAP_EDGES, accumulate(found.gap.counts), strict=True))
            family.add_metric([node, region], buckets, found.gap.sum_s)
    return family


def _gpus(nodes: Iterable[tuple[str, str, Gpu]]) -> Iterator[Metric]:
    fault = GaugeMetricFamily("edgeproxy_node_gpu_fault", "1 where a node's GPU failed", labels=_LABELS)
    labels = (*_LABELS, "state")
    generation = GaugeMetricFamily("edgeproxy_node_gpu_pcie_generation", "Of its GPU's link", labels=labels)
    lanes = GaugeMetricFamily("edgeproxy_node_gpu_pcie_lanes", "Of its GPU's link", labels=labels)
    for node, region, gpu in nodes:
        fault.add_metric([node, region], float(gpu.failed))
        for state, link in (("seen", gpu.link), ("possible", gpu.possible)):
            if link is not None:
                generation.add_metric([node, region, state], link.generation)
                lanes.add_metric([node, region, state], link.lanes)
    yield from (fault, generation, lanes)
