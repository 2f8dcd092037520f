"""Which node answers a request: the home region's least busy node, else the next region's, else the least bad.

Two loops. The slow one (`Home`, once per probe) ranks regions by distance and moves the home only for a clear gain, so
that noise between two near regions moves nothing. The fast one (`choose`, once per request) filters by health and
orders the nodes of each region by a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import itemgetter
from random import Random
from typing import Generic, Literal, Protocol, TypeVar

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.rtt import RttEstimator

HOME_GAIN_S = 0.010
HOME_SHARE = 2 / 3

Reason = Literal["home", "failover", "least-bad", "none"]


class Candidate(Protocol):
    """What the choice needs to know of a node."""

    @property
    def region(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def rtt(self) -> RttEstimator: ...
    @property
    def breaker(self) -> Breaker: ...


N = TypeVar("N", bound=Candidate)


@dataclass(frozen=True, slots=True)
class Terms:
    """What the choice rested on, for the ledger and for `predicted - actual`."""

    region: str
    network_s: float | None
    """Expected round trip; None while the node has not been measured."""
    in_flight: int


class Decision(Generic[N]):
    """Where a request goes. Few requests need a second node, so the order of the others is worked out when asked."""

    __slots__ = ("_others", "_ranked", "first", "reason")

    def __init__(self, first: N | None, reason: Reason, others: Callable[[], tuple[list[N], list[N]]]) -> None:
        """`others`: the fit and the unfit ones beside `first`, each in order."""
        self.first = first
        """None: there is no node at all."""
        self.reason = reason
        """home: the home region's node; failover: none there is fit; least-bad: none anywhere; none: no node at all."""
        self._others = others
        self._ranked: tuple[list[N], list[N]] | None = None

    @property
    def candidates(self) -> tuple[N, ...]:
        """Every node in the order in which to try them: the first `healthy` are fit, the rest are a last resort."""
        fit, unfit = self._rank()
        return () if self.first is None else (self.first, *fit, *unfit)

    @property
    def healthy(self) -> int:
        return len(self._rank()[0]) + (self.reason in ("home", "failover"))

    @property
    def terms(self) -> Terms | None:
        """Of the first candidate."""
        first = self.first
        return None if first is None else Terms(first.region, first.rtt.network, first.in_flight)

    def _rank(self) -> tuple[list[N], list[N]]:
        if self._ranked is None:
            self._ranked = self._others()
        return self._ranked


class Home:
    """The nearest region, held with the hysteresis that Tailscale's DERP proved, and the order of the others."""

    __slots__ = ("ranks", "region")

    def __init__(self, regions: Iterable[str]) -> None:
        """`regions` in the operator's order, which decides until there are measurements."""
        self.ranks: Mapping[str, int] = {region: rank for rank, region in enumerate(regions)}
        """Region -> its place, 0 for home, then nearest first; unmeasured ones last."""
        self.region: str | None = None
        """None until a region has been measured."""

    def update(self, minimums: Mapping[str, float | None]) -> None:
        """`minimums`: region -> smallest round trip of five minutes in seconds. A dead region keeps its last one."""
        measured = {region: rtt for region, rtt in minimums.items() if rtt is not None and region in self.ranks}
        if not measured:
            return
        nearest = min(measured, key=measured.__getitem__)
        if self.region is None or _clearly_nearer(measured[nearest], measured.get(self.region, inf)):
            self.region = nearest
        order = sorted(self.ranks, key=lambda region: (region != self.region, measured.get(region, inf)))
        self.ranks = {region: rank for rank, region in enumerate(order)}


def _clearly_nearer(new: float, old: float) -> bool:
    return old - new >= HOME_GAIN_S and new <= HOME_SHARE * old


def in_flight(candidate: Candidate) -> float:
    """The cost while nothing better is known: our own requests under way."""
    return candidate.in_flight


def choose(
    nodes: Collection[N], home: Home, now: float, rng: Random, cost: Callable[[N], float] = in_flight
) -> Decision[N]:
    """`nodes`: those that serve the model. Equal costs are shared out by `rng`, so that many proxies do not herd."""
    ranks, last = home.ranks, len(home.ranks)
    first: N | None = None
    first_rank, least, equals = last, inf, 1
    for node in nodes:
        rank = ranks.get(node.region, last)
        if rank > first_rank or not node.ready or not node.breaker.admits(now):
            continue
        spent = cost(node)
        if rank < first_rank or first is None or spent < least:
            first, first_rank, least, equals = node, rank, spent, 1
        elif spent == least:
            equals += 1  # each of n equals stays with a chance of 1/n
            if rng.random() * equals < 1:
                first = node
    if first is not None:
        reason: Reason = "home" if first_rank == 0 else "failover"
    elif nodes:
        first, reason = _ranked(nodes, None, home, now, rng, cost)[1][0], "least-bad"
    else:
        reason = "none"
    return Decision(first, reason, partial(_ranked, nodes, first, home, now, rng, cost))


def _ranked(
    nodes: Iterable[N], but: N | None, home: Home, now: float, rng: Random, cost: Callable[[N], float]
) -> tuple[list[N], list[N]]:
    """All nodes `but` one: the fit ones, nearest region first and least cost first within it, and the unfit ones."""
    ranks, last = home.ranks, len(home.ranks)
    fit: list[tuple[int, float, float, N]] = []
    unfit: list[tuple[bool, float, int, float, N]] = []
    for node in nodes:
        if node is but:
            continue
        rank = ranks.get(node.region, last)
        if node.ready and node.breaker.admits(now):
            fit.append((rank, cost(node), rng.random(), node))
        else:
            unfit.append((not node.ready, node.breaker.not_before, rank, rng.random(), node))
    fit.sort(key=itemgetter(0, 1, 2))
    unfit.sort(key=itemgetter(0, 1, 2, 3))
    return [entry[-1] for entry in fit], [entry[-1] for entry in unfit]
