"""What a native node measures of itself, from GET /node/v1/status: for people who watch, not for routing."""

from __future__ import annotations

from dataclasses import dataclass

from edgeproxy.protocol.node.said import number, read_object

MAX_STATUS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Instruments:
    """None where the node does not say. Ratios are of the last second in which it was busy (docs/metrics.md)."""

    susi: float | None = None
    worker_busy: float | None = None
    kvr: float | None = None
    mpfr: float | None = None
    gap_p50_s: float | None = None
    """ILD-gap: from a step's last kernel to the next one's first."""
    wake_p50_s: float | None = None
    """ILD-wake: from a request's arrival at an idle engine to its first kernel."""
    sleeping: bool = False


def decode(raw: bytes) -> Instruments:
    """What is missing or odd is None: newer and older nodes tell other things. Raises ValueError for no JSON object."""
    value = read_object(raw, "node status", MAX_STATUS_BYTES)
    return Instruments(
        number(value.get("susi")),
        number(value.get("worker_busy")),
        number(value.get("kvr")),
        number(value.get("mpfr")),
        _median(value.get("ild_gap")),
        _median(value.get("ild_wake")),
        value.get("sleeping") is True,
    )


def _median(view: object) -> float | None:
    found = number(view.get("p50_us")) if isinstance(view, dict) and view.get("count") else None
    return None if found is None else found / 1e6
