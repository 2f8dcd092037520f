"""Large fleets: a look at each region first, then at the nodes of the best two. Small ones are taken whole, from the
nearest to the farthest: the choice then stops where the rest is too far.

A region's summary is its best node, seen some moments ago; what has changed since is found when that region's nodes are
looked at, because the forecasts that decide are always made then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from math import inf
from random import Random
from typing import Generic

from edgeproxy.routing.choose import Candidate, N, Wanted
from edgeproxy.routing.home import Home
from edgeproxy.routing.prefix import members

WHOLE = 64
"""Fleets up to this size need no shortlist: a forecast takes about half a microsecond."""
REGIONS = 2
PER_REGION = 128
"""Of a larger region so many nodes are drawn by lot: their best is as good as the best of all but for a hundredth."""
SUMMARY_S = 0.100
"""Age at which a region's summary is made again, one region a decision."""
ORDER_S = 0.100
"""Age at which the order of a small fleet is made again: a round trip is measured every few seconds."""
HOLDERS = 16
"""Nodes that hold most of the prompt, wherever they are."""


class _Region(Generic[N]):
    __slots__ = ("at", "fixed", "nodes", "per_token")

    def __init__(self) -> None:
        self.nodes: list[N] = []
        self.at = -inf
        self.fixed = inf
        self.per_token = 0.0

    def summarise(self, now: float) -> None:
        self.at, self.fixed = now, inf
        for node in self.nodes:
            if not node.ready or node.draining or node.standby or not node.breaker.admits(now):
                continue
            cost = node.outlook.cost(now, 1.0)
            if cost < self.fixed:
                self.fixed, self.per_token = cost, node.outlook.pace.per_token


class Shortlist(Generic[N]):
    """The nodes that serve one model to one tenant."""

    def __init__(self, nodes: Sequence[N]) -> None:
        self.nodes = nodes
        self._small = len(nodes) <= WHOLE
        self._near: tuple[Sequence[N], Sequence[float]] = nodes, ()
        """Of a small fleet, as `pick` gives it."""
        self._ordered_at = -inf
        self._by_slot = {} if self._small else {node.slot: node for node in nodes}
        self._regions: dict[str, _Region[N]] = {}
        for node in () if self._small else nodes:
            self._regions.setdefault(node.region, _Region()).nodes.append(node)

    def pick(self, wanted: Wanted, home: Home, now: float, rng: Random) -> tuple[Sequence[N], Sequence[float]]:
        """Those worth a forecast, and how far each is (seconds) where the nearest come first; else nothing of that."""
        if self._small:
            if now - self._ordered_at >= ORDER_S:
                nodes = sorted(self.nodes, key=_distance)
                self._near, self._ordered_at = (nodes, list(map(_distance, nodes))), now
            return self._near
        self._refresh(now)
        found = {node.slot: node for node in self._likely(wanted)}
        for region in self._best(wanted.tokens, home):
            drawn = region.nodes if len(region.nodes) <= PER_REGION else rng.sample(region.nodes, PER_REGION)
            found.update([(node.slot, node) for node in drawn])
        return list(found.values()), ()

    def _best(self, tokens: float, home: Home) -> list[_Region[N]]:
        """Two regions, the home region among them: whether to leave it is the choice's business."""
        ranked = sorted(self._regions.values(), key=lambda region: region.fixed + tokens * region.per_token)
        at_home = self._regions.get(home.region or "")
        best = [region for region in ranked[:REGIONS] if region is not at_home]
        return best if at_home is None else [at_home, *best[: REGIONS - 1]]

    def _likely(self, wanted: Wanted) -> list[N]:
        """The session's node and those that hold most of the prompt."""
        holders = chain.from_iterable(members(slots) for slots, _ in wanted.levels)
        slots = list(islice(holders, HOLDERS))
        if wanted.sticky is not None:
            slots.append(wanted.sticky)
        return [self._by_slot[slot] for slot in slots if slot in self._by_slot]

    def _refresh(self, now: float) -> None:
        oldest = min(self._regions.values(), key=lambda region: region.at)
        if now - oldest.at >= SUMMARY_S:
            oldest.summarise(now)


def _distance(node: Candidate) -> float:
    return node.outlook.rtt.network
