"""Which node answers a request: the one that will show its first token soonest, unless the gain is noise.

The fast loop of routing, once per request; the slow one is `home`. In order:

1. Only nodes that are ready, not draining and admitted by their breaker; standby nodes where no other is.
2. The smallest forecast. A hot node (its wait is for memory, or long) pays for the doubt, so that it wins only where it
   is clearly better all the same (Prequal's hot and cold, arXiv 2312.10172, with the queue's length known).
3. The home region is left only for a clear gain. Near-equals are drawn by lot, so that many proxies do not herd.
4. A session's node is kept while that costs little.
5. All hot: the request may be held at the proxy, where it can still go anywhere (SkyLB's late binding, 2505.24095).
6. No node is fit: the least bad one. A proxy that tries nothing recovers from nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf
from random import Random
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.forecast import Basis, Forecast, Outlook
from edgeproxy.routing.home import Home
from edgeproxy.routing.rtt import UNMEASURED_S

GAIN_S = 0.010
GAIN_SHARE = 0.20
"""Home is left only for a forecast that is smaller by more than both: above the noise of a probe (10 ms, as for the
home rule itself) and of the forecast (a fifth)."""
EQUAL_SHARE = 0.05
"""Forecasts this close are equal."""
AFFINITY_S = 0.010
AFFINITY_SHARE = 0.10
"""The price of a session's affinity: its node may be behind by the larger of both. What it holds of the conversation's
answers, the prefix view does not know."""
MAX_HOLD_S = 0.250
"""Longest hold at the proxy."""
LEAST_HOLD_S = 0.001
"""What is left of a hold counts as its end below this. Late on the clock, a billionth of a second is no time at all:
`now + left` is `now`, and who waits until then asks again at the same moment, for ever."""

Reason = Literal["pinned", "home", "faster", "failover", "session", "standby", "least-bad", "none"]


class Candidate(Protocol):
    """What the choice needs to know of a node."""

    @property
    def name(self) -> str: ...
    @property
    def region(self) -> str: ...
    @property
    def slot(self) -> int:
        """The node's number in the prefix view."""

    @property
    def ready(self) -> bool: ...
    @property
    def draining(self) -> bool:
        """Gets no new request, not even as a last resort."""

    @property
    def standby(self) -> bool:
        """Only where no other node is fit."""

    @property
    def breaker(self) -> Breaker: ...
    @property
    def outlook(self) -> Outlook: ...


N = TypeVar("N", bound=Candidate)
Levels = Sequence[tuple[int, float]]
"""(a bit for each slot, how many of a prompt's tokens these nodes probably hold), most first. A slot is in one at most.
As many nodes hold as much, there are few of them, however large the fleet."""


class Wanted(NamedTuple):
    """What the choice needs to know of a request."""

    tokens: float
    """Of the prompt, as estimated."""
    levels: Levels = ()
    """How many of them are held where, as far as anything is known of that."""
    sticky: int | None = None
    """Slot of the node that served the session last."""
    usual: float = 0.0
    """How many of them any other node will find cached all the same."""

    def held(self, slot: int) -> float | None:
        """None: nothing is known of that node."""
        for slots, held in self.levels:
            if slots >> slot & 1:
                return held
        return None

    def cached(self, slot: int) -> float:
        """How many of them the node is expected to find cached."""
        held = self.held(slot) if self.levels else None
        return self.usual if held is None else held

    def to_compute(self, slot: int) -> float:
        compute = self.tokens - self.cached(slot)
        return compute if compute > 1.0 else 1.0


class Hold(NamedTuple):
    """All fit nodes are hot: to be asked again when one turns cold, and at `until` without leave to hold."""

    until: float


class Option(NamedTuple, Generic[N]):
    """A node, and what was expected of it."""

    node: N
    forecast: Forecast
    held: float
    """Of the prompt's tokens, those that it was taken to hold."""


_Noted = tuple[N, Basis]
_UNNOTED = (None, None)
_LAST_RESORTS = frozenset(("least-bad", "none"))


class Decision(Generic[N]):
    """Where a request goes, and what that rested on. Few requests need a second node, and few decisions are looked at:
    so the other nodes, and what people are shown, are worked out when somebody asks."""

    __slots__ = ("_home", "_index", "_nodes", "_noted", "_now", "_order", "first", "hot", "reason", "wanted")

    def __init__(
        self,
        nodes: Sequence[N],
        first: int | None,
        order: list[tuple[float, int]],
        reason: Reason,
        wanted: Wanted,
        home: Home,
        now: float,
        hot: bool = False,
    ) -> None:
        """`first`: index in `nodes`; `order`: (cost, index) of those that are fit, cheapest first: two at least, where
        there are as many."""
        self._nodes = nodes
        self._index = first
        self._order = order
        self._noted: tuple[_Noted[N] | None, _Noted[N] | None] = _UNNOTED
        self._home = home
        self._now = now
        self.first = None if first is None else nodes[first]
        """None: there is no node at all."""
        self.wanted = wanted
        self.reason = reason
        """pinned: the region that the client put first. home: the home region's node. faster: another region's, for a
        clear gain. failover: none there is fit. session: kept for its session. standby: no other is fit. least-bad:
        none at all is. none: there is no node."""
        self.hot = hot
        """Whether the node chosen makes its requests wait."""

    @property
    def fit(self) -> bool:
        """The node chosen is no last resort."""
        return self.reason not in _LAST_RESORTS

    def noted(self) -> Decision[N]:
        """Itself, which from now on tells `options` as they were now: sending the request changes the nodes' load."""
        first, order, now = self.first, self._order, self._now
        if first is not None:
            other = None
            if len(order) > 1:
                node = self._nodes[order[1][1] if order[0][1] == self._index else order[0][1]]
                other = node, node.outlook.basis(now)
            self._noted = (first, first.outlook.basis(now)), other
            self._order = []  # decisions are kept by the thousand
        return self

    def options(self) -> tuple[Option[N] | None, Option[N] | None]:
        """The node chosen, and the best of the others that are fit, as they were when the decision was noted."""
        first, second = self._noted
        return self._option(first), self._option(second)

    def _option(self, noted: _Noted[N] | None) -> Option[N] | None:
        if noted is None:
            return None
        (node, basis), wanted = noted, self.wanted
        forecast = Forecast.of(basis, self._now, wanted.to_compute(node.slot))
        return Option(node, forecast, wanted.cached(node.slot))

    def others(self, now: float) -> tuple[list[N], list[N]]:
        """The nodes to try after the first, in order, as things stand `now`: those that are fit, and a last resort."""
        nodes, first = self._nodes, self.first
        fit, standby = _costs(nodes, self.wanted, self._home, now, all_of_them=True)
        order = [index for _, index in (*fit, *standby)]
        tried = {self._index, *order}
        left = [node for index, node in enumerate(nodes) if index not in tried and not _shut(node, now)]
        return [nodes[index] for index in order if nodes[index] is not first], sorted(left, key=_badness)


def choose(
    nodes: Sequence[N],
    wanted: Wanted,
    home: Home,
    now: float,
    rng: Random,
    hold_s: float = 0.0,
    far: Sequence[float] = (),
) -> Decision[N] | Hold:
    """`nodes`: those that serve the model and may serve the tenant. `hold_s`: how long the request may be held where
    all of them are hot. `far`: where the nearest come first, how far each is (seconds); then not all are looked at."""
    fit, standby = _costs(nodes, wanted, home, now, far=far)
    order = fit + standby if standby else fit
    if not order:
        return _least_bad(nodes, wanted, home, now)
    best, index = order[0]
    node = nodes[index]
    hot = node.outlook.load.hot(now, wanted.to_compute(node.slot))
    if hot and hold_s >= LEAST_HOLD_S and _all_hot(nodes, wanted, home, now):
        return Hold(now + min(hold_s, MAX_HOLD_S))
    if not fit:
        return Decision(nodes, index, order, "standby", wanted, home, now, hot)
    reason: Reason = "home"
    if node.region != home.region:
        reason, best, index = _away(nodes, fit, home)
    index = _by_lot(nodes, fit, best, index, rng)
    if wanted.sticky is not None and nodes[index].slot != wanted.sticky:
        kept = _kept(nodes, fit, best, wanted.sticky)
        if kept is not None:
            return Decision(nodes, kept, order, "session", wanted, home, now, hot)
    return Decision(nodes, index, order, reason, wanted, home, now, hot)


def _costs(
    nodes: Sequence[N],
    wanted: Wanted,
    home: Home,
    now: float,
    *,
    all_of_them: bool = False,
    far: Sequence[float] = (),
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """(cost, index) of the fit nodes, cheapest first, standby ones apart.

    Once a node at home is the cheapest, those are left out that cost more than the runner-up and than anything that
    could be preferred to the cheapest: most of them by their distance and their work alone, and unseen where they are
    behind one whose distance is too much.
    """
    tokens, sticky, step_s = wanted.tokens, wanted.sticky, home.step_s
    region = None if all_of_them else home.region
    unseen = max(tokens - wanted.usual, 1.0)
    levels = [(slots, max(tokens - held, 1.0)) for slots, held in wanted.levels] if wanted.levels else None
    best = second = most = inf
    at_home = False
    fit: list[tuple[float, int]] = []
    standby: list[tuple[float, int]] = []
    for index, node in enumerate(nodes):
        outlook, compute = node.outlook, unseen
        if levels is not None:
            slot = node.slot
            for slots, left in levels:
                if slots >> slot & 1:
                    compute = left
                    break
        cost = outlook.cost(now, compute, True, most)
        if cost > most:
            if far and far[index] > most:
                break
            continue
        if not node.ready or node.draining or (now < node.breaker.wary_until and not node.breaker.admits(now)):
            continue
        if outlook.rtt.srtt is None:
            cost += UNMEASURED_S * home.ranks.get(node.region, len(home.ranks))
        if step_s:
            cost += step_s * home.ranks.get(node.region, 0)
        if node.standby:
            standby.append((cost, index))
            continue
        fit.append((cost, index))
        if cost < second:
            if cost < best:
                best, second, at_home = cost, best, node.region == region
            else:
                second = cost
            if at_home:
                most = best + (EQUAL_SHARE * best if sticky is None else max(AFFINITY_S, AFFINITY_SHARE * best))
                if second > most:
                    most = second
    fit.sort()
    standby.sort()
    return fit, standby


def _away(nodes: Sequence[N], fit: list[tuple[float, int]], home: Home) -> tuple[Reason, float, int]:
    """The cheapest is not at home: why a request goes there all the same, or the node at home for which it stays;
    with its cost and index."""
    best, index = fit[0]
    at_home = _at_home(nodes, fit, home.region)
    if at_home is None and home.region is not None:
        at_home = _at_home(nodes, fit, _home_of(nodes, home))
    if at_home is not None:
        if at_home[0] - best <= max(GAIN_S, GAIN_SHARE * at_home[0]):
            return "home", *at_home
        return "faster", best, index
    if home.region is None and nodes[index].region == next(iter(home.ranks), None):
        return ("pinned" if home.step_s else "home"), best, index
    return "failover", best, index


def _home_of(nodes: Sequence[N], home: Home) -> str | None:
    """Home itself, or the next region where home has no node for the request but standbys."""
    regions = {node.region for node in nodes if not node.standby}
    return min(regions, key=lambda region: home.ranks.get(region, len(home.ranks)), default=None)


def _at_home(nodes: Sequence[N], fit: list[tuple[float, int]], region: str | None) -> tuple[float, int] | None:
    """The best of the home region."""
    for entry in fit:
        if nodes[entry[1]].region == region:
            return entry
    return None


def _by_lot(nodes: Sequence[N], fit: list[tuple[float, int]], best: float, index: int, rng: Random) -> int:
    """One of those in the region of `index` whose cost is near its own, `best`: drawn from all that are near it until
    one is of that region, as most of them are."""
    near, region = bisect_right(fit, (best + EQUAL_SHARE * best, len(nodes))), nodes[index].region
    if near == 1:
        return index
    while True:
        drawn = fit[int(rng.random() * near)][1]
        if nodes[drawn].region == region:
            return drawn


def _kept(nodes: Sequence[N], fit: list[tuple[float, int]], best: float, slot: int) -> int | None:
    """The session's node, where it is fit and its price is right."""
    most = best + max(AFFINITY_S, AFFINITY_SHARE * best)
    return next((index for cost, index in fit if cost <= most and nodes[index].slot == slot), None)


def _all_hot(nodes: Sequence[N], wanted: Wanted, home: Home, now: float) -> bool:
    """Of those that are fit."""
    fit, standby = _costs(nodes, wanted, home, now, all_of_them=True)
    indices = [index for _, index in (*fit, *standby)]
    return all(nodes[index].outlook.load.hot(now, wanted.to_compute(nodes[index].slot)) for index in indices)


def _least_bad(nodes: Sequence[N], wanted: Wanted, home: Home, now: float) -> Decision[N]:
    open_to = [index for index, node in enumerate(nodes) if not _shut(node, now)]
    if not open_to:
        return Decision(nodes, None, [], "none", wanted, home, now)
    best = min(open_to, key=lambda index: _badness(nodes[index]))
    return Decision(nodes, best, [], "least-bad", wanted, home, now)


def _shut(node: Candidate, now: float) -> bool:
    """It has asked for no more requests, or for none now: that is honoured even where nobody else is left."""
    return node.draining or node.breaker.not_before > now


def _badness(node: Candidate) -> tuple[bool, bool, float]:
    """Those that may be well after all first, whose breaker has only tripped; then the nearest."""
    srtt = node.outlook.rtt.srtt
    return (not node.ready, node.standby, UNMEASURED_S if srtt is None else srtt)
