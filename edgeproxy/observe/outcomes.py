"""What became of requests, kept for people who look: the last ones, the hour by slices, how fast the budget burns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from edgeproxy.observe.blame import blame
from edgeproxy.observe.burn import Burn
from edgeproxy.observe.contrast import Contrast, Difference, nearest
from edgeproxy.observe.history import History, together
from edgeproxy.observe.rings import Kind, Rings
from edgeproxy.observe.verdict import Lately

RECENT = 1000
"""Of each kind so many are kept, and found by their id."""
WINDOW_S = 300
SHOWN = 100
FRESH = 50
"""Of a busy second only so many requests are shown one by one; the histograms have them all."""


class Outcomes:
    """`add` one record a request, as it is logged."""

    def __init__(self, burn: Burn) -> None:
        self.history = History()
        self.burn = burn
        self._kept: Rings[Mapping[str, Any]] = Rings(RECENT)
        self._count = 0
        self._told = 0
        self._contrast = Contrast(RECENT)
        self._uncompared = 0
        """Answered since they were last compared."""

    def add(self, record: Mapping[str, Any]) -> None:
        kind = self._kept.add(record, record)
        self._count += 1
        wait, now = record["wait_s"], record["time"]
        if kind is Kind.ANSWERED:
            self._uncompared += 1
        if wait is not None:
            within = wait <= record["budget_s"]
            self.history.answered(wait, within, now)
            self.burn.count(within, now)
        elif kind is Kind.FAILED:
            self.history.failed(now)
            self.burn.count(False, now)

    def latest(self, count: int) -> list[Mapping[str, Any]]:
        """Of whatever kind, the oldest of them first."""
        return list(islice(self._kept.newest(), count))[::-1]

    def of(self, request_id: str) -> Mapping[str, Any] | None:
        """The newest of that id among those kept."""
        return self._kept.find(request_id)

    def newest(self) -> dict[str, Any]:
        return {"recent": self.latest(SHOWN)}

    def changes(self) -> dict[str, Any]:
        """Requests that ended since this was last asked, the newest of them."""
        new, self._told = self._count - self._told, self._count
        return {"recent": self.latest(min(new, FRESH))}

    def view(self, since: float, now: float) -> dict[str, Any]:
        """`since`: Unix seconds, the start of the history wanted."""
        window = list(self.history.since(now - WINDOW_S))
        within, failed = sum([found.within for found in window]), sum([found.failed for found in window])
        spread = together(window)
        halves = {name: spread.quantile(share) for name, share in (("p50", 0.5), ("p95", 0.95))}
        answered = self._kept.of(Kind.ANSWERED)
        return {
            "count": self._count,
            "slices": [found.view() for found in self.history.since(since)],
            "burn": self.burn.view(now),
            "objective": self.burn.objective,
            "first_token": halves,
            "lately": Lately(sum(spread.bins.values()), within, failed)._asdict(),
            "blame": blame(answered, self._kept.of(Kind.FAILED), now - WINDOW_S)._asdict(),
            "examples": {name: nearest(answered, seconds) for name, seconds in halves.items()},
            "contrast": [difference._asdict() for difference in self._differences(answered)],
        }

    def _differences(self, answered: list[Mapping[str, Any]]) -> list[Difference]:
        """Only somebody's look compares: requests do not wait for it."""
        new, self._uncompared = self._uncompared, 0
        self._contrast.add(answered[max(len(answered) - new, 0) :])
        return self._contrast.differences()
