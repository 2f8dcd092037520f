"""How fast the error budget burns: the share of bad requests in a window, over the share that the objective allows.

Two windows have to agree before anybody is called: the long one says that it matters, the short one that it still goes
on (Google, The Site Reliability Workbook, chapter 5, table 5-8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil
from typing import Any, NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

MINUTE_S = 60
KEPT = 3 * 24 * 60
LEAST_EVENTS = 20
"""Fewer in the short window say nothing: one slow request of three is no fire..."""
LEAST_BAD = 5
"""...and where a pair's rate means one bad request in twenty, one of twenty is chance: so many have to be bad at it."""


class Pair(NamedTuple):
    """Minutes of both windows, and the rate above which both of them mean `severity`."""

    long: int
    short: int
    rate: float
    way: float
    """Where the objective allows much: so much of the way from 1 to the rate at which every request is bad."""
    severity: str

    def limit(self, objective: float) -> float:
        """The rate, or what can be reached of it: 5 is the most that burns of an objective of 80 %, and 14.4 would call
        nobody while nobody is served in time. Always between 1 and that most."""
        most = 1 / (1 - objective)
        return min(self.rate, 1 + self.way * (most - 1))

    def least(self, objective: float) -> int:
        """Requests in the short window, below which there is no verdict."""
        return max(LEAST_EVENTS, ceil(LEAST_BAD / (self.limit(objective) * (1 - objective)) - 1e-9))


PAIRS = (
    Pair(60, 5, 14.4, 0.75, "page"),
    Pair(6 * 60, 30, 6.0, 0.5, "page"),
    Pair(3 * 24 * 60, 6 * 60, 1.0, 0.0, "ticket"),
)


class Minute:
    __slots__ = ("bad", "minute", "total")

    def __init__(self, minute: int) -> None:
        self.minute = minute
        self.total = 0
        self.bad = 0


class Burn:
    """`objective`: the share of requests, below 1, that is to have its first token within the budget."""

    def __init__(self, objective: float) -> None:
        self.objective = objective
        self._minutes: deque[Minute] = deque(maxlen=KEPT)

    def count(self, good: bool, now: float, many: int = 1) -> None:
        """So many. `now`: Unix seconds; a clock that goes back counts for the newest minute."""
        minute = int(now // MINUTE_S)
        if not self._minutes or self._minutes[-1].minute < minute:
            self._minutes.append(Minute(minute))
        newest = self._minutes[-1]
        newest.total += many
        newest.bad += 0 if good else many

    def within(self, minutes: int, now: float) -> tuple[int, int]:
        """(total, bad) of the last `minutes`, the current one included."""
        oldest = int(now // MINUTE_S) - minutes + 1
        total = bad = 0
        for found in reversed(self._minutes):
            if found.minute < oldest:
                break
            total += found.total
            bad += found.bad
        return total, bad

    def rate(self, minutes: int, now: float) -> float | None:
        """1 spends the budget exactly; None where nothing was asked."""
        total, bad = self.within(minutes, now)
        return bad / total / (1 - self.objective) if total else None

    def rates(self, now: float) -> dict[str, float]:
        """Window (`5m`, `1h`, …) -> rate, for the windows in which anything was asked."""
        windows = sorted({minutes for pair in PAIRS for minutes in (pair.long, pair.short)})
        found = ((minutes, self.rate(minutes, now)) for minutes in windows)
        return {_name(minutes): rate for minutes, rate in found if rate is not None}

    def counts(self, now: float) -> Iterator[tuple[str, int, int]]:
        """Short window, its requests, and how many are needed for a verdict, of each pair."""
        for pair in PAIRS:
            yield _name(pair.short), self.within(pair.short, now)[0], pair.least(self.objective)

    def limits(self) -> Iterator[tuple[str, float]]:
        """Long window of each pair, and its limit."""
        for pair in PAIRS:
            yield _name(pair.long), pair.limit(self.objective)

    def view(self, now: float) -> list[dict[str, Any]]:
        """`state`: ok, burning, or few where there is no verdict yet."""
        return [self._pair(pair, now) for pair in PAIRS]

    def _pair(self, pair: Pair, now: float) -> dict[str, Any]:
        long, short = self.rate(pair.long, now), self.rate(pair.short, now)
        (events, _), least = self.within(pair.short, now), pair.least(self.objective)
        limit = pair.limit(self.objective)
        burning = long is not None and short is not None and min(long, short) > limit
        return {
            "long_minutes": pair.long,
            "short_minutes": pair.short,
            "long": long,
            "short": short,
            "limit": limit,
            "severity": pair.severity,
            "events": events,
            "least": least,
            "state": "few" if events < least else "burning" if burning else "ok",
        }


def _name(minutes: int) -> str:
    for unit, size in (("d", 24 * 60), ("h", 60)):
        if minutes >= size and not minutes % size:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"


def burn_families(burn: Burn, now: float) -> Iterator[Metric]:
    rates = GaugeMetricFamily("edgeproxy_budget_burn_ratio", "How fast the error budget burns", labels=["window"])
    for window, rate in burn.rates(now).items():
        rates.add_metric([window], rate)
    requests = GaugeMetricFamily(
        "edgeproxy_budget_window_requests", "Requests that count in a window", labels=["window"]
    )
    least = GaugeMetricFamily(
        "edgeproxy_budget_window_least", "Requests in a window, below which a burn rate says nothing", labels=["window"]
    )
    for window, events, needed in burn.counts(now):
        requests.add_metric([window], events)
        least.add_metric([window], needed)
    limits = GaugeMetricFamily(
        "edgeproxy_budget_burn_limit_ratio",
        "Burn rate above which somebody is called, of each pair of windows by the longer one",
        labels=["window"],
    )
    for window, limit in burn.limits():
        limits.add_metric([window], limit)
    yield from (rates, requests, least, limits)
