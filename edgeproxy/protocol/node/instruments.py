"""What a native node measures of itself, from GET /node/v1/status: for people who watch, not for routing."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import orjson

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
    if len(raw) > MAX_STATUS_BYTES:
        raise ValueError(f"node status of {len(raw)} bytes exceeds {MAX_STATUS_BYTES}")
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"node status is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError("node status is not a JSON object")
    return Instruments(
        _number(value.get("susi")),
        _number(value.get("worker_busy")),
        _number(value.get("kvr")),
        _number(value.get("mpfr")),
        _median(value.get("ild_gap")),
        _median(value.get("ild_wake")),
        value.get("sleeping") is True,
    )


def _median(view: object) -> float | None:
    found = _number(view.get("p50_us")) if isinstance(view, dict) and view.get("count") else None
    return None if found is None else found / 1e6


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        return None
    return float(value)
