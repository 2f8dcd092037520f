"""How fast the error budget burns: the share of bad requests in a window, over the share that the objective allows.

Two windows have to agree before anybody is called: the long one says that it matters, the short one that it still goes
on (Google, The Site Reliability Workbook, chapter 5, table 5-8).
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

MINUTE_S = 60
KEPT = 3 * 24 * 60
LEAST_EVENTS = 20
"""Fewer in the short window say nothing: one slow request of three is no fire."""


class Pair(NamedTuple):
    """Minutes of both windows, and the rate above which both of them mean `severity`."""

    long: int
    short: int
    rate: float
    severity: str


PAIRS = (Pair(60, 5, 14.4, "page"), Pair(6 * 60, 30, 6.0, "page"), Pair(3 * 24 * 60, 6 * 60, 1.0, "ticket"))


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

    def count(self, good: bool, now: float) -> None:
        """`now`: Unix seconds; a clock that goes back counts for the newest minute."""
        minute = int(now // MINUTE_S)
        if not self._minutes or self._minutes[-1].minute < minute:
            self._minutes.append(Minute(minute))
        newest = self._minutes[-1]
        newest.total += 1
        newest.bad += not good

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

    def view(self, now: float) -> list[dict[str, Any]]:
        return [self._pair(pair, now) for pair in PAIRS]

    def _pair(self, pair: Pair, now: float) -> dict[str, Any]:
        long, short = self.rate(pair.long, now), self.rate(pair.short, now)
        events, _ = self.within(pair.short, now)
        burning = long is not None and short is not None and min(long, short) > pair.rate and events >= LEAST_EVENTS
        return {
            "long_minutes": pair.long,
            "short_minutes": pair.short,
            "long": long,
            "short": short,
            "limit": pair.rate,
            "severity": pair.severity,
            "burning": burning,
        }


def _name(minutes: int) -> str:
    for unit, size in (("d", 24 * 60), ("h", 60)):
        if minutes >= size and not minutes % size:
            return f"{minutes // size}{unit}"
    return f"{minutes}m"
