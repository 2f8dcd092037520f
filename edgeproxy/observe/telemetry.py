"""What the proxy could not tell: log lines that nobody took, spans that no collector did."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from edgeproxy.observe.log import Log
from edgeproxy.observe.trace import Tracer


def telemetry_families(log: Log, tracer: Tracer | None) -> Iterator[Metric]:
    """`tracer`: None where traces are not collected."""
    yield CounterMetricFamily(
        "edgeproxy_log_lines_dropped", "Log lines that their reader did not take", log.dropped_lines
    )
    if tracer is not None:
        spans = CounterMetricFamily("edgeproxy_trace_spans", "Spans, by what became of them", labels=["outcome"])
        for outcome, count in tracer.spans.items():
            spans.add_metric([outcome], count)
        yield spans
