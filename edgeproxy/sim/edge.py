"""A proxy of the simulated fleet: one policy, its health checks, and the requests that it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edgeproxy.routing.breaker import Breaker
from edgeproxy.sim.policies.base import Policy
from edgeproxy.sim.workload import Request


class Outcome:
    """How a request ended."""

    ANSWERED, CUT, FAILED = range(3)
    """CUT: its node died after the first token. FAILED: no node gave a first token in the attempts there are."""


class Flight:
    """One request under way."""

    __slots__ = ("attempt", "cached", "first_s", "held_since", "node", "outcome", "request", "sent_at", "tried", "trip")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.node = -1
        self.attempt = 0
        """How often it has been sent."""
        self.tried: tuple[int, ...] = ()
        self.trip = 0.0
        """This attempt's round trip."""
        self.sent_at = 0.0
        self.held_since = 0.0
        self.first_s: float | None = None
        """From its arrival at the proxy to the first token there."""
        self.cached = 0
        self.outcome: int | None = None


class Edge:
    """Every policy stands behind the same breakers and probes: they are compared by where they send, not by health."""

    __slots__ = ("_all", "_breakers", "_ready", "held", "policy", "region")

    def __init__(self, region: int, policy: Policy, nodes: int) -> None:
        self.region = region
        self.policy = policy
        self.held: deque[Flight] = deque()
        self._all: Sequence[int] = range(nodes)
        self._breakers: dict[int, Breaker] = {}
        """Of nodes with which something was wrong; the others need none."""
        self._ready = [True] * nodes

    def open(self, now: float, tried: Sequence[int]) -> Sequence[int]:
        """Nodes that may be tried now: not known to be down, not tried before; else the least bad, all of them."""
        if not self._breakers and not tried:
            return self._all
        breakers, ready = self._breakers, self._ready
        found = [
            node
            for node in self._all
            if node not in tried and ready[node] and (node not in breakers or breakers[node].admits(now))
        ]
        return found or [node for node in self._all if node not in tried] or self._all

    def probed(self, node: int, alive: bool, now: float) -> None:
        self._ready[node] = alive
        if alive:
            if node in self._breakers:
                self._breakers[node].probed(now)
                if self._breakers[node].state(now) == "closed" and self._breakers[node].not_before <= now:
                    del self._breakers[node]
        else:
            self.broken(node)

    def broken(self, node: int) -> Breaker:
        return self._breakers.setdefault(node, Breaker())

    def started(self, node: int, now: float) -> None:
        if node in self._breakers:
            self._breakers[node].started(now)

    def succeeded(self, node: int, now: float) -> None:
        if node in self._breakers:
            self._breakers[node].succeeded(now)
