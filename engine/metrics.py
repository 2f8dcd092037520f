"""A node's metrics for Prometheus, every name in one place (docs/metrics.md). Loaded at the first scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edgeproxy.protocol.node.report import NodeReport, NodeState
from engine.gauges import Gauges, Histogram
from engine.gpu.faults import KINDS
from engine.gpu.view import GpuView


def exposition(
    report: NodeReport, gauges: Gauges, accept: str, gpu: GpuView | None = None, cpu_use: float | None = None
) -> tuple[bytes, str]:
    """Text in the format that `accept` asks for (Prometheus or OpenMetrics), and its media type.

    cpu_use: of the compute threads' time in the last seconds, busy or not.
    """
    encode, media_type = _encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    work = (*_work(report, gauges), *_use(gauges, gpu, cpu_use), *_gpu(gpu))
    registry.register(_Families([*_state(report), *_blocks(report, gauges), *work]))
    return encode(registry), media_type


def _encoder(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """The library compares a version that is no number with numbers; who asks for such a one gets plain text."""
    try:
        return choose_encoder(accept)
    except TypeError:
        return choose_encoder("")


class _Families(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._found = families

    def collect(self) -> Iterable[Metric]:
        return self._found


def _state(report: NodeReport) -> Iterator[Metric]:
    info = GaugeMetricFamily("engine_info", "Constant 1", labels=["model", "numerics"])
    info.add_metric([report.model, report.numerics], 1)
    yield info
    states = GaugeMetricFamily("engine_state", "1 for the state that the node is in", labels=["state"])
    for state in NodeState:
        states.add_metric([state], float(state is report.state))
    yield states
    yield _gauge("engine_running", "Sequences that run", report.running)
    yield _gauge("engine_waiting", "Sequences that wait", report.waiting)
    yield _gauge("engine_waiting_prefill_tokens", "Prompt tokens not planned yet", report.waiting_prefill_tokens)


def _blocks(report: NodeReport, gauges: Gauges) -> Iterator[Metric]:
    free, evictable = report.kv_blocks_free, report.kv_blocks_evictable
    blocks = GaugeMetricFamily("engine_kv_blocks", "KV blocks of the pool by what holds them", labels=["state"])
    for state, count in (("free", free), ("evictable", evictable), ("used", report.kv_blocks_total - free - evictable)):
        blocks.add_metric([state], max(0, count))
    yield blocks
    yield _counter("engine_kv_blocks_reused", "Blocks that a sequence found computed", gauges.blocks_reused)
    yield _counter("engine_kv_blocks_loaded", "Of the reused those read from the KV store", gauges.blocks_loaded)
    yield _counter("engine_kv_blocks_computed", "Blocks that a sequence had to compute", gauges.blocks_computed)
    yield _gauge("engine_kv_reuse_ratio", "KVR: reused blocks of all that were reused or computed", gauges.kvr)


def _work(report: NodeReport, gauges: Gauges) -> Iterator[Metric]:
    yield _counter("engine_steps", "Steps planned", report.step_counter)
    yield _counter("engine_prefilled_tokens", "Prompt tokens that were run", gauges.prefilled)
    yield _counter("engine_generated_tokens", "Tokens of answers", gauges.generated)
    yield _counter("engine_forced_tokens", "Of these what a form left no choice about", gauges.forced)
    yield _counter("engine_aborts", "Sequences ended from outside", gauges.aborts)
    yield _counter("engine_preemptions", "Sequences that gave their blocks up for others", gauges.preemptions)
    yield _gauge("engine_abort_steps_max", "Most steps until the blocks of an abort were free", gauges.abort_steps_max)
    yield _gauge("engine_prefill_tokens_per_second", "Rate of late", report.prefill_tokens_per_s)
    yield _gauge("engine_step_seconds", "Duration of a step of late", gauges.step_ms / 1e3)
    yield _histogram("engine_step_gap_seconds", "ILD-gap: a step's last kernel to the next one's first", gauges.gap)
    yield _histogram("engine_wake_seconds", "ILD-wake: arrival at an idle engine to the first kernel", gauges.wake)


def _use(gauges: Gauges, gpu: GpuView | None, cpu_use: float | None) -> Iterator[Metric]:
    use = gauges.utilisation
    workers = CounterMetricFamily("engine_worker_cpu_seconds", "CPU time of a compute thread", labels=["worker"])
    for worker, seconds in enumerate(use.worker_s):
        workers.add_metric([str(worker)], seconds)
    yield workers
    yield _counter("engine_busy_seconds", "Time in which steps ran, gaps between them included", use.busy_s)
    yield _counter("engine_page_faults", "Minor and major, of the threads that make steps", use.page_faults)
    for name, about, value in (
        ("engine_cpu_use_ratio", "Of the compute threads' time of late, busy or not, what they ran", cpu_use),
        ("engine_worker_busy_ratio", "Of busy time, what the compute threads ran on average", use.worker_busy),
        ("engine_susi_ratio", "SUSI: 1 - deviation / mean of use", use.susi if gpu is None else gpu.susi),
        ("engine_page_faults_per_token", "MPFR, of the last second of busy time", use.faults_per_token),
    ):
        yield _known(name, about, value)


def _gpu(gpu: GpuView | None) -> Iterator[Metric]:
    """Names without values on the CPU, and for what cannot be found out."""
    info = GaugeMetricFamily("engine_gpu_info", "Constant 1", labels=["name", "uuid", "watch", "sampling"])
    memory = GaugeMetricFamily("engine_gpu_memory_bytes", "Of the device, by what holds it", labels=["state"])
    links = GaugeMetricFamily("engine_gpu_pcie_lanes", "Of the link", labels=["state"])
    generations = GaugeMetricFamily("engine_gpu_pcie_generation", "Of the link", labels=["state"])
    events = CounterMetricFamily("engine_gpu_events", "Errors that the driver told of", labels=["kind"])
    if gpu is not None:
        info.add_metric([gpu.name, gpu.uuid, gpu.watch, gpu.sampling], 1)
        if gpu.memory is not None:
            memory.add_metric(["used"], gpu.memory.used)
            memory.add_metric(["free"], gpu.memory.free)
        for state, link in (("seen", gpu.link), ("possible", gpu.best_link)):
            if link is not None:
                links.add_metric([state], link.width)
                generations.add_metric([state], link.generation)
        for kind in KINDS.values():
            events.add_metric([kind], gpu.events.get(kind, 0))
    yield from (info, memory, links, generations, events)
    sm, bandwidth, fault = (gpu.sm_busy, gpu.memory_busy, float(gpu.fault is not None)) if gpu else (None, None, None)
    yield _known("engine_gpu_sm_busy_ratio", "SMs that were busy while steps ran", sm)
    yield _known("engine_gpu_memory_busy_ratio", "Of the memory's bandwidth, in the last second", bandwidth)
    yield _known("engine_gpu_fault", "1 where the device failed", fault)


def _known(name: str, about: str, value: float | None) -> Metric:
    """Without a value where there is none."""
    family = GaugeMetricFamily(name, about)
    if value is not None:
        family.add_metric([], value)
    return family


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value)


def _counter(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(name, about, value)


def _histogram(name: str, about: str, found: Histogram) -> Metric:
    bounds = [*(str((1 << index) / 1e6) for index in range(len(found.counts) - 1)), "+Inf"]
    buckets = list(zip(bounds, accumulate(found.counts), strict=True))
    return HistogramMetricFamily(name, about, buckets, sum_value=found.sum_us / 1e6)
