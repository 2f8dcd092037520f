"""What a native node measures of itself, from GET /node/v1/status: for people who watch, not for routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeproxy.protocol.node.said import number, read_object

MAX_STATUS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Link:
    """Of PCIe: as it was seen under load, or as device and slot could have it."""

    generation: float
    lanes: float


@dataclass(frozen=True, slots=True)
class Gpu:
    failed: bool = False
    """An error that is fatal was told of: the node drains."""
    link: Link | None = None
    possible: Link | None = None


@dataclass(frozen=True, slots=True)
class Instruments:
    """None where the node does not say. Ratios are of the last second in which it was busy (docs/metrics.md)."""

    susi: float | None = None
    worker_busy: float | None = None
    kvr: float | None = None
    mpfr: float | None = None
    gap_p50_s: float | None = None
    """ILD-gap: from a step's last kernel to the next one's first."""
    gap_p99_s: float | None = None
    wake_p50_s: float | None = None
    """ILD-wake: from a request's arrival at an idle engine to its first kernel."""
    sleeping: bool = False
    prefilled_tokens: float | None = None
    """Like the next three, since the node began."""
    generated_tokens: float | None = None
    aborts: float | None = None
    preemptions: float | None = None
    gpu: Gpu | None = None
    """None on the CPU."""


def decode(raw: bytes) -> Instruments:
    """What is missing or odd is None: newer and older nodes tell other things. Raises ValueError for no JSON object."""
    value = read_object(raw, "node status", MAX_STATUS_BYTES)
    return Instruments(
        susi=number(value.get("susi")),
        worker_busy=number(value.get("worker_busy")),
        kvr=number(value.get("kvr")),
        mpfr=number(value.get("mpfr")),
        gap_p50_s=_quantile(value.get("ild_gap"), "p50_us"),
        gap_p99_s=_quantile(value.get("ild_gap"), "p99_us"),
        wake_p50_s=_quantile(value.get("ild_wake"), "p50_us"),
        sleeping=value.get("sleeping") is True,
        prefilled_tokens=number(value.get("prefilled_tokens")),
        generated_tokens=number(value.get("generated_tokens")),
        aborts=number(value.get("aborts")),
        preemptions=number(value.get("preemptions")),
        gpu=_gpu(value.get("gpu")),
    )


def _quantile(view: object, name: str) -> float | None:
    """Seconds, of a histogram in which there is anything."""
    found = number(view.get(name)) if isinstance(view, dict) and view.get("count") else None
    return None if found is None else found / 1e6


def _gpu(view: object) -> Gpu | None:
    if not isinstance(view, dict):
        return None
    return Gpu(isinstance(view.get("fault"), str), _link(view, "link"), _link(view, "link_possible"))


def _link(view: Mapping[str, Any], name: str) -> Link | None:
    found = view.get(name)
    if not isinstance(found, dict):
        return None
    generation, lanes = number(found.get("generation")), number(found.get("width"))
    return None if generation is None or lanes is None else Link(generation, lanes)
