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

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.forecast import UNMEASURED_S, Basis, Forecast, Outlook
from edgeproxy.routing.home import Home

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
_NOTHING: Mapping[int, float] = MappingProxyType({})


class Wanted(NamedTuple):
    """What the choice needs to know of a request."""

    tokens: float
    """Of the prompt, as estimated."""
    cached: Mapping[int, float] = _NOTHING
    """Slot -> how many of them the node probably holds, where anything is known of that."""
    sticky: int | None = None
    """Slot of the node that served the session last."""
    hold_s: float = 0.0
    """How long the request may be held where all nodes are hot."""
    usual: float = 0.0
    """How many of them any other node will find cached all the same."""

    def to_compute(self, slot: int) -> float:
        return max(self.tokens - self.cached.get(slot, self.usual), 1.0)


class Hold(NamedTuple):
    """All fit nodes are hot: to be asked again when one turns cold, and at `until` without leave to hold."""

    until: float


class Option(NamedTuple, Generic[N]):
    """A node and what its forecast rested on, as the decision saw it."""

    node: N
    basis: Basis
    held: float
    """Of the prompt's tokens, those that it was taken to hold."""

    @property
    def forecast(self) -> Forecast:
        return Forecast.of(self.basis)


class Decision(Generic[N]):
    """Where a request goes, and what that rested on. Few requests need a second node, so the others are worked out
    when asked for."""

    __slots__ = ("_first", "_fit", "_nodes", "_now", "_rest", "_wanted", "hot", "reason")

    def __init__(
        self,
        nodes: Sequence[N],
        first: int | None,
        fit: list[tuple[float, int]],
        reason: Reason,
        wanted: Wanted,
        now: float,
        hot: bool = False,
    ) -> None:
        """`first`: index in `nodes`; `fit`: (cost, index) of those that are fit, in the order in which to try them."""
        self._nodes = nodes
        self._first = first
        self._fit = fit
        self._rest: list[N] | None = None
        self._wanted = wanted
        self._now = now
        self.reason = reason
        """pinned: the region that the client put first. home: the home region's node. faster: another region's, for a
        clear gain. failover: none there is fit. session: kept for its session. standby: no other is fit. least-bad:
        none at all is. none: there is no node."""
        self.hot = hot
        """Whether the node chosen makes its requests wait."""

    @property
    def first(self) -> N | None:
        """None: there is no node at all."""
        return None if self._first is None else self._nodes[self._first]

    def options(self) -> tuple[Option[N] | None, Option[N] | None]:
        """The node chosen, and the best of the others that are fit. As of now, in the literal sense: to be asked at
        once, before the nodes' load changes."""
        first = self._first
        if first is None:
            return None, None
        for _, index in self._fit:
            if index != first:
                return self._option(first), self._option(index)
        return self._option(first), None

    def _option(self, index: int) -> Option[N]:
        node, wanted = self._nodes[index], self._wanted
        held = wanted.cached.get(node.slot, wanted.usual) if wanted.cached else wanted.usual
        compute = wanted.tokens - held
        return Option(node, node.outlook.basis(self._now, compute if compute > 1.0 else 1.0), held)

    @property
    def wanted(self) -> Wanted:
        return self._wanted

    @property
    def candidates(self) -> tuple[N, ...]:
        """Every node in the order in which to try them: the first `healthy` are fit, the rest are a last resort."""
        first = self.first
        if first is None:
            return ()
        others = [self._nodes[index] for _, index in self._fit if index != self._first]
        return (first, *others, *(node for node in self._unfit() if node is not first))

    @property
    def healthy(self) -> int:
        return len(self._fit)

    def _unfit(self) -> list[N]:
        if self._rest is None:
            fit = {index for _, index in self._fit}
            left = [node for index, node in enumerate(self._nodes) if index not in fit and not _shut(node, self._now)]
            self._rest = sorted(left, key=_badness)
        return self._rest


def choose(nodes: Sequence[N], wanted: Wanted, home: Home, now: float, rng: Random) -> Decision[N] | Hold:
    """`nodes`: those that serve the model and may serve the tenant."""
    fit, standby = _costs(nodes, wanted, home, now)
    if not fit and not standby:
        return _least_bad(nodes, wanted, now)
    fit.sort()
    standby.sort()
    order = fit + standby if standby else fit
    best, index = order[0]
    hot = nodes[index].outlook.load.hot(now, wanted.to_compute(nodes[index].slot))
    if hot and wanted.hold_s >= LEAST_HOLD_S and _all_hot(nodes, order, wanted, now):
        return Hold(now + min(wanted.hold_s, MAX_HOLD_S))
    if not fit:
        return Decision(nodes, index, order, "standby", wanted, now, hot)
    reason: Reason = "failover"
    at_home = _at_home(nodes, fit, home.region)
    if at_home is None and home.region is not None:
        at_home = _at_home(nodes, fit, _home_of(nodes, home))
    if at_home is not None:
        staying = at_home[0] - best <= max(GAIN_S, GAIN_SHARE * at_home[0])
        reason = "home" if staying else "faster"
        if staying:
            best, index = at_home
    elif home.region is None and nodes[index].region == next(iter(home.ranks), None):
        reason = "pinned" if home.step_s else "home"
    index = _by_lot(nodes, fit, best, index, rng)
    if wanted.sticky is not None and nodes[index].slot != wanted.sticky:
        kept = _kept(nodes, fit, best, wanted.sticky)
        if kept is not None:
            return Decision(nodes, kept, order, "session", wanted, now, hot)
    return Decision(nodes, index, order, reason, wanted, now, hot)


def _costs(
    nodes: Sequence[N], wanted: Wanted, home: Home, now: float
) -> tuple[list[tuple[float, int]], list[tuple[float, int]]]:
    """(cost, index) of the fit nodes, standby ones apart."""
    tokens, cached, usual, step_s = wanted.tokens, wanted.cached, wanted.usual, home.step_s
    unseen = max(tokens - usual, 1.0)
    fit: list[tuple[float, int]] = []
    standby: list[tuple[float, int]] = []
    for index, node in enumerate(nodes):
        breaker = node.breaker
        if not node.ready or node.draining or now < breaker.not_before or (breaker.tripped and not breaker.admits(now)):
            continue
        outlook, compute = node.outlook, unseen
        if cached:
            compute = tokens - cached.get(node.slot, usual)
            if compute < 1.0:
                compute = 1.0
        cost = outlook.cost(now, compute, doubted=True)
        if outlook.rtt.srtt is None:
            cost += UNMEASURED_S * home.ranks.get(node.region, len(home.ranks))
        if step_s:
            cost += step_s * home.ranks.get(node.region, 0)
        (standby if node.standby else fit).append((cost, index))
    return fit, standby


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
    """One of those in the region of `index` whose cost is near its own, `best`."""
    most, region = best + EQUAL_SHARE * best, nodes[index].region
    equals, drawn = 1, index
    for cost, other in fit:
        if cost > most:
            break
        if other != index and nodes[other].region == region:
            equals += 1  # each of n equals stays with a chance of 1/n
            if rng.random() * equals < 1.0:
                drawn = other
    return drawn


def _kept(nodes: Sequence[N], fit: list[tuple[float, int]], best: float, slot: int) -> int | None:
    """The session's node, where it is fit and its price is right."""
    most = best + max(AFFINITY_S, AFFINITY_SHARE * best)
    return next((index for cost, index in fit if cost <= most and nodes[index].slot == slot), None)


def _all_hot(nodes: Sequence[N], fit: list[tuple[float, int]], wanted: Wanted, now: float) -> bool:
    return all(nodes[index].outlook.load.hot(now, wanted.to_compute(nodes[index].slot)) for _, index in fit)


def _least_bad(nodes: Sequence[N], wanted: Wanted, now: float) -> Decision[N]:
    open_to = [index for index, node in enumerate(nodes) if not _shut(node, now)]
    if not open_to:
        return Decision(nodes, None, [], "none", wanted, now)
    return Decision(nodes, min(open_to, key=lambda index: _badness(nodes[index])), [], "least-bad", wanted, now)


def _shut(node: Candidate, now: float) -> bool:
    """It has asked for no more requests, or for none now: that is honoured even where nobody else is left."""
    return node.draining or node.breaker.not_before > now


def _badness(node: Candidate) -> tuple[bool, bool, float]:
    """Those that may be well after all first, whose breaker has only tripped; then the nearest."""
    srtt = node.outlook.rtt.srtt
    return (not node.ready, node.standby, UNMEASURED_S if srtt is None else srtt)
