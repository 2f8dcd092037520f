"""What every routing policy sees and says. None sees a node: only its own sends, what comes back, and late reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from edgeproxy.sim.kv import PrefixCache
from edgeproxy.sim.node import Report
from edgeproxy.sim.workload import Asked

RTT_WEIGHT = 0.3
"""Of the newest probe, as in GORGO's prototype."""
HELD_BLOCKS = 1 << 16


class Hold(NamedTuple):
    """Ask again when something new is known, and at `until` at the latest (seconds; infinite: no such time)."""

    until: float


class Told(NamedTuple):
    """What an answer's first token tells, in seconds."""

    ttft_s: float
    """From sending to the first token, at the proxy."""
    queue_s: float
    """On the node: until its first prefill step."""
    prefill_s: float
    """On the node: from then to the first token."""
    cached: int
    """Prompt tokens that the node had already."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a policy stands: at a proxy in region `home`, before the nodes of a fleet."""

    home: int
    region_of: Sequence[int]
    """Node -> region."""
    regions: Sequence[str]
    block_tokens: int


class Policy(ABC):
    """One proxy's router. Times are seconds of the run's clock."""

    def __init__(self, place: Place, rng: Random) -> None:
        self.place = place
        self.rng = rng
        count = len(place.region_of)
        self.in_flight = [0] * count
        """Own requests that have been sent and are not over."""
        self.reports: list[Report | None] = [None] * count
        self.rtts = [0.0] * count
        """Smoothed probes; 0 before the first."""

    @abstractmethod
    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        """One of `nodes`, those that are up as far as this proxy knows, never empty. `waited`: how long it was held."""

    def sent(self, node: int, asked: Asked, now: float) -> None:
        self.in_flight[node] += 1

    def first(self, node: int, asked: Asked, told: Told, now: float) -> None:
        """The first token is here."""
        return  # who learns from answers says how

    def ended(self, node: int, asked: Asked, now: float, *, served: bool) -> None:
        """Called once for everything sent. `served`: the answer came to its end; else it was refused or lost."""
        self.in_flight[node] -= 1

    def reported(self, node: int, report: Report, now: float) -> None:
        self.reports[node] = report

    def probed(self, node: int, rtt: float, now: float) -> None:
        old = self.rtts[node]
        self.rtts[node] = old + RTT_WEIGHT * (rtt - old) if old else rtt

    def least(self, nodes: Sequence[int], costs: Sequence[float]) -> int:
        """The node of the smallest cost; equals are drawn by lot."""
        smallest = min(costs)
        equals = [node for node, cost in zip(nodes, costs, strict=True) if cost == smallest]
        return equals[0] if len(equals) == 1 else self.rng.choice(equals)


class Pushes:
    """Own sends that no report can have counted yet: per node, when they were sent and how many tokens they had."""

    def __init__(self, count: int) -> None:
        self._sent: list[deque[tuple[float, int]]] = [deque() for _ in range(count)]

    def add(self, node: int, tokens: int, now: float) -> None:
        self._sent[node].append((now, tokens))

    def reported(self, node: int, at: float, rtt: float) -> None:
        """`at`: when the report was made on the node."""
        sent = self._sent[node]
        while sent and sent[0][0] + rtt / 2 <= at:
            sent.popleft()

    def count(self, node: int) -> int:
        return len(self._sent[node])


class Prefixes:
    """What each node holds by this proxy's own sends, as the approximate trees of SGLang's and SkyLB's routers have it.

    It forgets what the node must have: its capacity is taken from its reports.
    """

    def __init__(self, place: Place) -> None:
        self._views = [PrefixCache() for _ in place.region_of]
        self._rooms = [HELD_BLOCKS] * len(place.region_of)
        self._block_tokens = place.block_tokens

    def tokens(self, node: int, asked: Asked) -> int:
        """Prompt tokens that the node holds."""
        return min(self._views[node].peek(asked.blocks) * self._block_tokens, asked.prompt - 1) if asked.blocks else 0

    def size(self, node: int) -> int:
        return len(self._views[node])

    def sent(self, node: int, asked: Asked) -> None:
        if asked.blocks:
            self._views[node].add(asked.blocks, self._rooms[node])

    def reported(self, node: int, report: Report) -> None:
        self._rooms[node] = report.kv_tokens // self._block_tokens

    def lost(self, node: int) -> None:
        self._views[node].clear()
