"""What became of requests, kept for people who look: the last ones, the hour by slices, how fast the budget burns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import le
from typing import Any, Final

from edgeproxy.observe.blame import blame
from edgeproxy.observe.burn import Burn
from edgeproxy.observe.contrast import Contrast, Difference, nearest
from edgeproxy.observe.history import History, Slice, slice_of, together
from edgeproxy.observe.requests import Record, column, having
from edgeproxy.observe.rings import Kind, Rings, kind_of
from edgeproxy.observe.verdict import Lately

RECENT = 1000
"""Of each kind so many are kept, and found by their id."""
WINDOW_S = 300
SHOWN = 100
FRESH = 50
"""Of a busy second only so many requests are shown one by one; the histograms have them all."""
REFUSED_SHOWN = 10
"""Of either so many at most were refused: one client in a loop would leave no room for who is served."""
_SHOWN_OF: Final = {
    Kind.ANSWERED: SHOWN,
    Kind.FAILED: SHOWN,
    Kind.REFUSED: REFUSED_SHOWN,
    Kind.LEFT: REFUSED_SHOWN,
}


class Outcomes:
    """`add` records of requests, as they are logged."""

    def __init__(self, burn: Burn) -> None:
        self.history = History()
        self.burn = burn
        self._kept: Rings[Mapping[str, Any]] = Rings(RECENT)
        self._told = 0
        self._contrast = Contrast(RECENT)
        self._uncompared = 0
        """Answered since they were last compared."""

    def add(self, records: Sequence[Record]) -> list[Kind]:
        """Requests that ended one after the other. Which kind each of them is."""
        kinds = list(map(kind_of, records))
        self._kept.extend(kinds, column(records, "request_id"), records)
        self._uncompared += kinds.count(Kind.ANSWERED)
        if slice_of(records[0]["time"]) == slice_of(records[-1]["time"]):
            self._count(kinds, records)
        else:
            for kind, record in zip(kinds, records, strict=True):
                self._count([kind], [record])
        return kinds

    def _count(self, kinds: Sequence[Kind], records: Sequence[Record]) -> None:
        """Of one slice of the history."""
        now, shown = records[0]["time"], having(records, "wait_s")
        if shown:
            waits = column(shown, "wait_s")
            within = sum(map(le, waits, column(shown, "budget_s")))
            self.history.answered(waits, within, now)
            self.burn.count(True, now, within)
            self.burn.count(False, now, len(waits) - within)
        if len(shown) < len(records):
            for kind, record in zip(kinds, records, strict=True):
                if record["wait_s"] is None:
                    self.history.unseen(kind, now)
                    self.burn.count(False, now, int(kind is Kind.FAILED))

    def latest(self, count: int, since: int = 0) -> list[Mapping[str, Any]]:
        """The oldest of them first; few that were refused. `since`: how many had come when they were asked for last."""
        return list(islice(self._kept.newest(_SHOWN_OF, since), count))[::-1]

    def of(self, request_id: str) -> Mapping[str, Any] | None:
        """The newest of that id among those kept."""
        return self._kept.find(request_id)

    def newest(self) -> dict[str, Any]:
        return {"recent": self.latest(SHOWN)}

    def changes(self) -> dict[str, Any]:
        """Requests that ended since this was last asked, the newest of them."""
        since, self._told = self._told, self._kept.count
        return {"recent": self.latest(FRESH, since)}

    def view(self, since: float, now: float) -> dict[str, Any]:
        """`since`: Unix seconds, the start of the history wanted."""
        window = list(self.history.since(now - WINDOW_S))
        spread = together(window)
        halves = {name: spread.quantile(share) for name, share in (("p50", 0.5), ("p95", 0.95))}
        answered, failed, refused = (self._kept.of(kind) for kind in (Kind.ANSWERED, Kind.FAILED, Kind.REFUSED))
        return {
            "count": self._kept.count,
            "slices": [found.view() for found in self.history.since(since)],
            "burn": self.burn.view(now),
            "objective": self.burn.objective,
            "first_token": halves,
            "lately": _lately(window)._asdict(),
            "budgets": _budgets(answered, now - WINDOW_S),
            "blame": blame(answered, failed, now - WINDOW_S, refused)._asdict(),
            "examples": {name: nearest(answered, seconds) for name, seconds in halves.items()},
            "contrast": [difference._asdict() for difference in self._differences(answered)],
        }

    def _differences(self, answered: list[Mapping[str, Any]]) -> list[Difference]:
        """Only somebody's look compares: requests do not wait for it."""
        new, self._uncompared = self._uncompared, 0
        self._contrast.add(answered[max(len(answered) - new, 0) :])
        return self._contrast.differences()


def _lately(window: Iterable[Slice]) -> Lately:
    slices = list(window)
    seen = sum([sum(found.bins.values()) for found in slices])
    unseen = {kind: sum([found.unseen[kind] for found in slices]) for kind in Kind}
    return Lately(
        seen,
        sum([found.within for found in slices]),
        unseen[Kind.FAILED],
        unseen[Kind.ANSWERED],
        unseen[Kind.REFUSED],
        unseen[Kind.LEFT],
    )


def _budgets(answered: Iterable[Mapping[str, Any]], since: float) -> list[float]:
    """The least and the most that first tokens were charged to, in seconds; empty where there were none."""
    found = {record["budget_s"] for record in answered if record["time"] >= since and record["wait_s"] is not None}
    return [min(found), max(found)] if found else []
