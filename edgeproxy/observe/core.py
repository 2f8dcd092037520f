"""How long the proxy's event loop ran, and how long it was ready to run and had no core: Linux counts both.

What a first token lost to the second is nobody's term. The node's bytes lay in the kernel, and the ledger counts that
as `unexplained`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, Metric

SCHEDSTAT = Path("/proc/self/schedstat")
"""Of the first thread, in which the loop runs: nanoseconds on a core and waiting for one, and turns (proc(5))."""


def core_families(path: Path = SCHEDSTAT) -> Iterator[Metric]:
    """Nothing where the kernel does not count."""
    try:
        ran, waited, *_ = (int(number) / 1e9 for number in path.read_text().split())
    except (OSError, ValueError):
        return
    yield CounterMetricFamily("edgeproxy_core_seconds", "For which the event loop ran", ran)
    yield CounterMetricFamily("edgeproxy_core_wait_seconds", "For which it could have run and had no core", waited)
