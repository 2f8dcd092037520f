"""Load as ORCA puts it (Open Request Cost Aggregation): one header that load balancers such as Envoy read. Pure.

A client asks for it with `endpoint-load-metrics-format: TEXT` or `JSON`; the answer's header begins with the format's
name. The names of the metrics are vLLM's where it has them, so that whoever balances vLLM can balance this.
"""

from __future__ import annotations

import orjson

from edgeproxy.protocol.node.report import NodeReport

FORMAT_HEADER = b"endpoint-load-metrics-format"
HEADER = b"endpoint-load-metrics"


def load_metrics(wanted: bytes, report: NodeReport, cpu_use: float | None) -> bytes | None:
    """The header's value; None in a format that is not known. cpu_use: of the cores that it computes on, of late."""
    held = report.kv_blocks_total - report.kv_blocks_free - report.kv_blocks_evictable
    named = {
        "kv_cache_usage_perc": round(held / max(1, report.kv_blocks_total), 4),
        "num_requests_running": report.running,
        "num_requests_waiting": report.waiting,
    }
    cpu = {} if cpu_use is None else {"cpu_utilization": round(cpu_use, 4)}
    match wanted.strip().upper():
        case b"TEXT":
            values = {**cpu, **{f"named_metrics.{name}": value for name, value in named.items()}}
            return b"TEXT " + ", ".join(f"{name}={value}" for name, value in values.items()).encode()
        case b"JSON":
            return b"JSON " + orjson.dumps({**cpu, "named_metrics": named})
    return None
