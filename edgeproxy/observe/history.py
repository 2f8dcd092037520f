"""First tokens over time, in slices of ten seconds, as histograms that can be added up (percentiles cannot).

Bins are logarithmic, 24 a decade: a percentile read from them is within 5 % of the true one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from math import floor, log10
from typing import Any

SLICE_S = 10
KEPT = 360
"""Slices: an hour."""
BINS_A_DECADE = 24
LEAST_S = 0.001
BINS = 5 * BINS_A_DECADE
"""From LEAST_S to 100 s; what is beyond either end counts at that end."""


def bin_of(seconds: float) -> int:
    if seconds <= LEAST_S:
        return 0
    return min(floor(log10(seconds / LEAST_S) * BINS_A_DECADE), BINS - 1)


def middle_of(index: int) -> float:
    """Seconds; of a bin's two ends the geometric mean."""
    return float(LEAST_S * 10 ** ((index + 0.5) / BINS_A_DECADE))


def quantile(bins: Mapping[int, int], share: float) -> float | None:
    """Seconds below which `share` of what was counted lies; None where nothing was."""
    wanted = share * sum(bins.values())
    passed = 0
    for index in sorted(bins):
        passed += bins[index]
        if passed >= wanted and bins[index]:
            return middle_of(index)
    return None


class Slice:
    """Ten seconds. `start`: Unix seconds, a multiple of SLICE_S."""

    __slots__ = ("bins", "failed", "start", "within")

    def __init__(self, start: int) -> None:
        self.start = start
        self.bins: dict[int, int] = {}
        self.within = 0
        """First tokens within their budget."""
        self.failed = 0
        """Requests that should have had a first token and had none."""

    def view(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "count": sum(self.bins.values()),
            "within": self.within,
            "failed": self.failed,
            "p50_s": quantile(self.bins, 0.5),
            "p95_s": quantile(self.bins, 0.95),
            "bins": sorted(self.bins.items()),
        }


class History:
    """The last hour. `now` is Unix seconds; a clock that goes back writes into the newest slice."""

    def __init__(self) -> None:
        self._slices: deque[Slice] = deque(maxlen=KEPT)

    def answered(self, seconds: float, within: bool, now: float) -> None:
        current = self._at(now)
        index = bin_of(seconds)
        current.bins[index] = current.bins.get(index, 0) + 1
        current.within += within

    def failed(self, now: float) -> None:
        self._at(now).failed += 1

    def since(self, start: float) -> Iterable[Slice]:
        """Slices that begin at `start` or later, oldest first; those in which nothing happened are left out."""
        return (found for found in self._slices if found.start >= start)

    def _at(self, now: float) -> Slice:
        start = int(now // SLICE_S) * SLICE_S
        if not self._slices or self._slices[-1].start < start:
            self._slices.append(Slice(start))
        return self._slices[-1]
