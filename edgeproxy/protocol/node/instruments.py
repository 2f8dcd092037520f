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


GAP_BUCKETS = 24
"""Of a node's histograms: bucket i holds what took less than 2**i microseconds and is in no bucket before; the last
also what took longer. Others that a node names are its own affair: a bucket is a label."""


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram, since the node began."""

    counts: tuple[int, ...]
    """GAP_BUCKETS of them."""
    sum_s: float


@dataclass(frozen=True, slots=True)
class Instruments:
    """None where the node does not say. Ratios are of the last second in which it was busy (docs/metrics.md)."""

    susi: float | None = None
    worker_busy: float | None = None
    kvr: float | None = None
    mpfr: float | None = None
    gap: Durations | None = None
    """ILD-gap: from a step's last kernel to the next one's first..."""
    gap_p50_s: float | None = None
    """...and its median."""
    wake_p50_s: float | None = None
    """ILD-wake: from a request's arrival at an idle engine to its first kernel."""
    sleeping: bool = False
    prefilled_tokens: float | None = None
    """Like all below but `gpu`, since the node began."""
    generated_tokens: float | None = None
    aborts: float | None = None
    preemptions: float | None = None
    kv_blocks_reused: float | None = None
    kv_blocks_computed: float | None = None
    page_faults: float | None = None
    busy_s: float | None = None
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
        gap=_durations(value.get("ild_gap")),
        gap_p50_s=_quantile(value.get("ild_gap"), "p50_us"),
        wake_p50_s=_quantile(value.get("ild_wake"), "p50_us"),
        sleeping=value.get("sleeping") is True,
        prefilled_tokens=number(value.get("prefilled_tokens")),
        generated_tokens=number(value.get("generated_tokens")),
        aborts=number(value.get("aborts")),
        preemptions=number(value.get("preemptions")),
        kv_blocks_reused=number(value.get("kv_blocks_reused")),
        kv_blocks_computed=number(value.get("kv_blocks_computed")),
        page_faults=number(value.get("page_faults")),
        busy_s=number(value.get("busy_s")),
        gpu=_gpu(value.get("gpu")),
    )


def _quantile(view: object, name: str) -> float | None:
    """Seconds, of a histogram in which there is anything."""
    found = number(view.get(name)) if isinstance(view, dict) and view.get("count") else None
    return None if found is None else found / 1e6


def _durations(view: object) -> Durations | None:
    if not isinstance(view, dict) or not isinstance(buckets := view.get("buckets"), dict):
        return None
    sum_us = number(view.get("sum_us"))
    counts = [number(buckets.get(str(1 << index), 0)) for index in range(GAP_BUCKETS)]
    found = tuple([int(count) for count in counts if count is not None])
    return None if sum_us is None or len(found) < GAP_BUCKETS else Durations(found, sum_us / 1e6)


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
