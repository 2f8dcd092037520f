"""First tokens over time, in slices of ten seconds, as histograms that can be added up (percentiles cannot).

Bins are logarithmic, 24 a decade. A percentile is read from within its bin, by the rank that it has there, and
lies between the smallest and the largest that were seen: it never exceeds every request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from math import ceil, inf
from typing import Any, NamedTuple

from edgeproxy.observe.rings import Kind

SLICE_S = 10
KEPT = 360
"""Slices: an hour."""
BINS_A_DECADE = 24
LEAST_S = 0.001
BINS = 5 * BINS_A_DECADE
"""From LEAST_S to 100 s; what is beyond either end counts at that end."""


def seconds_of(position: float) -> float:
    """`position`: of a bin its number, and how far into it; its lower end for a whole number."""
    return float(LEAST_S * 10 ** (position / BINS_A_DECADE))


_EDGES = tuple(map(seconds_of, range(1, BINS)))


def bin_of(seconds: float) -> int:
    return bisect_right(_EDGES, seconds)


def slice_of(now: float) -> int:
    """Where the slice begins."""
    return int(now // SLICE_S) * SLICE_S


class Spread(NamedTuple):
    """What was seen, as far as it is kept: how many in each bin, and both ends in seconds."""

    bins: Mapping[int, int]
    least: float
    most: float

    def quantile(self, share: float) -> float | None:
        """Seconds within which `share` of what was counted came; None where nothing was."""
        rank, passed = max(ceil(share * sum(self.bins.values())), 1), 0
        for index in sorted(self.bins):
            count = self.bins[index]
            if passed + count >= rank:
                # Those of one bin are taken to lie in it evenly: the first of three at a sixth of its width.
                return min(max(seconds_of(index + (rank - passed - 0.5) / count), self.least), self.most)
            passed += count
        return None


def together(slices: Iterable[Slice]) -> Spread:
    """Of several slices, as if they were one."""
    bins, least, most = Counter[int](), inf, 0.0
    for found in slices:
        bins.update(found.bins)
        least, most = min(least, found.least), max(most, found.most)
    return Spread(bins, least, most)


class Slice:
    """Ten seconds. `start`: Unix seconds, a multiple of SLICE_S."""

    __slots__ = ("bins", "least", "most", "start", "unseen", "within")

    def __init__(self, start: int) -> None:
        self.start = start
        self.bins: dict[int, int] = {}
        self.least, self.most = inf, 0.0
        """Of the first tokens, in seconds."""
        self.within = 0
        """First tokens within their budget."""
        self.unseen = dict.fromkeys(Kind, 0)
        """Requests without a first token that we know of, by what became of them."""

    def view(self) -> dict[str, Any]:
        spread = Spread(self.bins, self.least, self.most)
        return {
            "start": self.start,
            "count": sum(self.bins.values()),
            "within": self.within,
            "failed": self.unseen[Kind.FAILED],
            "p50_s": spread.quantile(0.5),
            "p95_s": spread.quantile(0.95),
            "bins": sorted(self.bins.items()),
        }


class History:
    """The last hour. `now` is Unix seconds; a clock that goes back writes into the newest slice."""

    def __init__(self) -> None:
        self._slices: deque[Slice] = deque(maxlen=KEPT)

    def answered(self, seconds: Sequence[float], within: int, now: float) -> None:
        """So many first tokens of one slice, of which so many came within their budget."""
        current = self._at(now)
        for index, count in Counter(map(bisect_right, repeat(_EDGES), seconds)).items():
            current.bins[index] = current.bins.get(index, 0) + count
        current.least = min(current.least, *seconds)
        current.most = max(current.most, *seconds)
        current.within += within

    def unseen(self, kind: Kind, now: float) -> None:
        """A request of which no first token is known."""
        self._at(now).unseen[kind] += 1

    def since(self, start: float) -> Iterable[Slice]:
        """Slices that begin at `start` or later, oldest first; those in which nothing happened are left out."""
        return (found for found in self._slices if found.start >= start)

    def _at(self, now: float) -> Slice:
        start = slice_of(now)
        if not self._slices or self._slices[-1].start < start:
            self._slices.append(Slice(start))
        return self._slices[-1]
