"""The fleet simulator's beginning: a trace of arrivals replayed through the real choice, under a clock that only jumps.

Each region has one node that serves its requests side by side: a first token takes the round trip and the region's own
time. Probes run as in life (every five seconds, with noise), and a region can be dead for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.choose import Hold, Reason, Wanted, choose
from edgeproxy.routing.forecast import Outlook
from edgeproxy.routing.home import Home

PROBE_S = 5.0


@dataclass(frozen=True, slots=True)
class Region:
    """Seconds. `noise_s`: the most that queueing adds to a probe; `dead`: from and until, half open."""

    name: str
    rtt_s: float
    first_token_s: float = 0.0
    noise_s: float = 0.0
    dead: tuple[float, float] | None = None

    def alive(self, now: float) -> bool:
        return self.dead is None or not self.dead[0] <= now < self.dead[1]


@dataclass(frozen=True, slots=True)
class Served:
    """One request's fate; `region` and `first_token_s` are None where no region could answer."""

    at: float
    region: str | None
    first_token_s: float | None
    attempts: int
    reason: Reason


@dataclass(slots=True)
class _Node:
    model: Region
    slot: int
    ready: bool = False
    draining: bool = False
    standby: bool = False
    outlook: Outlook = field(default_factory=Outlook)
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def region(self) -> str:
        return self.model.name


def replay(regions: Iterable[Region], arrivals: Iterable[float], rng: Random, attempts: int = 3) -> list[Served]:
    """`arrivals`: times in ascending order. A dead region costs a failed attempt one round trip, as a refusal does."""
    nodes = [_Node(region, slot) for slot, region in enumerate(regions)]
    home = Home(node.region for node in nodes)
    served: list[Served] = []
    next_probe = 0.0
    for now in arrivals:
        while next_probe <= now:
            _probe(nodes, home, next_probe, rng)
            next_probe += PROBE_S
        served.append(_serve(nodes, home, now, rng, attempts))
    return served


def _probe(nodes: list[_Node], home: Home, now: float, rng: Random) -> None:
    for node in nodes:
        node.ready = node.model.alive(now)
        if node.ready:
            node.outlook.rtt.probe(node.model.rtt_s + rng.uniform(0, node.model.noise_s), now)
            node.breaker.probed(now)
    home.update({node.region: node.outlook.rtt.minimum(now) for node in nodes})


def _serve(nodes: list[_Node], home: Home, now: float, rng: Random, attempts: int) -> Served:
    decision = choose(nodes, Wanted(tokens=1.0), home, now, rng)
    assert not isinstance(decision, Hold)
    waited = 0.0
    tried = decision.candidates[:attempts]
    for attempt, node in enumerate(tried, 1):
        node.breaker.started(now)
        waited += node.model.rtt_s
        if node.model.alive(now):
            node.breaker.succeeded(now)
            return Served(now, node.region, waited + node.model.first_token_s, attempt, decision.reason)
        node.breaker.failed(now)
    return Served(now, None, None, len(tried), decision.reason)
