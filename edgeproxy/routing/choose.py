"""Which node answers a request: the home region's least busy node, else the next region's, else the least bad.

Two loops. The slow one (`Home`, once per probe) ranks regions by distance and moves the home only for a clear gain, so
that noise between two near regions moves nothing. The fast one (`choose`, once per request) filters by health and
orders the nodes of each region by a cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Decision(Generic[N]):
    """Every node in the order in which to try them: the first `healthy` are fit, the rest are a last resort."""

    candidates: tuple[N, ...]
    healthy: int
    reason: Reason
    """home: the home region's node; failover: none there is fit; least-bad: none anywhere; none: no node at all."""
    terms: Terms | None
    """Of the first candidate."""


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
    nodes: Iterable[N], home: Home, now: float, rng: Random, cost: Callable[[N], float] = in_flight
) -> Decision[N]:
    """`nodes`: those that serve the model. Equal costs are shared out by `rng`, so that many proxies do not herd."""
    ranks, last = home.ranks, len(home.ranks)
    fit: list[tuple[int, float, float, N]] = []
    unfit: list[tuple[bool, float, int, float, N]] = []
    for node in nodes:
        rank = ranks.get(node.region, last)
        if node.ready and node.breaker.admits(now):
            fit.append((rank, cost(node), rng.random(), node))
        else:
            unfit.append((not node.ready, node.breaker.not_before, rank, rng.random(), node))
    fit.sort(key=itemgetter(0, 1, 2))
    unfit.sort(key=itemgetter(0, 1, 2, 3))
    candidates = tuple(entry[-1] for entry in fit) + tuple(entry[-1] for entry in unfit)
    if not candidates:
        return Decision((), 0, "none", None)
    first = candidates[0]
    terms = Terms(first.region, first.rtt.network, first.in_flight)
    reason: Reason = "least-bad" if not fit else "home" if ranks.get(first.region) == 0 else "failover"
    return Decision(candidates, len(fit), reason, terms)
