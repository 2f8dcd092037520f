"""What came of a run: counts and first-token times, in little memory for many millions of requests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from edgeproxy.sim.edge import Flight, Outcome


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds; shares from 0 to 1."""

    requests: int
    answered: int
    cut: int
    failed: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    hit_ratio: float
    """Prompt tokens found in a node's cache, of all."""
    away: float
    """Requests answered outside of their own region, of all that were."""
    retried: float
    """Requests that were sent more than once."""


class Result:
    def __init__(self, regions: int) -> None:
        self.outcomes = [0, 0, 0]
        """By `Outcome`."""
        self.ttfts: array[float] = array("d")
        """Of answered and cut requests, seconds."""
        self.events = 0
        self.per_region = [0] * regions
        """Answered there."""
        self._prompt = self._cached = self._away = self._retried = 0

    def add(self, flight: Flight, region: int) -> None:
        outcome = flight.outcome
        assert outcome is not None
        self.outcomes[outcome] += 1
        self._retried += flight.attempt > 1
        if flight.first_s is not None:
            self.ttfts.append(flight.first_s)
            self.per_region[region] += 1
            self._away += region != flight.request.origin
            self._prompt += flight.request.asked.prompt
            self._cached += flight.cached

    def summary(self, ordered: Sequence[float] | None = None) -> Summary:
        """`ordered`: `ttfts`, where they have been sorted already. Raises ValueError where nothing was answered."""
        if not self.ttfts:
            raise ValueError("no request was answered; fewer faults, or a longer run, would leave something to compare")
        ordered = sorted(self.ttfts) if ordered is None else ordered
        count, total = len(ordered), sum(self.outcomes)
        return Summary(
            requests=total,
            answered=self.outcomes[Outcome.ANSWERED],
            cut=self.outcomes[Outcome.CUT],
            failed=self.outcomes[Outcome.FAILED],
            ttft_mean_s=sum(ordered) / count,
            ttft_p50_s=quantile(ordered, 0.50),
            ttft_p95_s=quantile(ordered, 0.95),
            ttft_p99_s=quantile(ordered, 0.99),
            hit_ratio=self._cached / self._prompt,
            away=self._away / count,
            retried=self._retried / total,
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest rank; `ordered` is not empty."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
