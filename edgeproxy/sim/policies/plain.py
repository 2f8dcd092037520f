"""Policies that know neither lengths nor prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random

from edgeproxy.sim.node import Report
from edgeproxy.sim.policies.base import Hold, Place, Policy, Pushes, Told
from edgeproxy.sim.workload import Asked


class Nearest(Policy):
    """The nearest region that is up, its node with the fewest own requests: what DNS and anycast routing come to."""

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        region_of, trips = self.place.region_of, self._trips
        nearest = min((trips[region_of[node]], region_of[node]) for node in nodes)[1]
        near = [node for node in nodes if region_of[node] == nearest]
        return self.least(near, [self.in_flight[node] for node in near])

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._trips = [0.0] * len(place.regions)
        """Region -> its smallest probe."""

    def probed(self, node: int, rtt: float, now: float) -> None:
        super().probed(node, rtt, now)
        region = self.place.region_of[node]
        self._trips[region] = min(rtt, self._trips[region] or rtt)


class RoundRobin(Policy):
    """Every node in turn (nginx's, Envoy's and LiteLLM's plainest), beginning anywhere."""

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._turn = rng.randrange(len(place.region_of))

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        self._turn += 1
        return nodes[self._turn % len(nodes)]


class LeastLoad(Policy):
    """The fewest requests running and waiting, by the last report and the own sends since (vLLM's router, LiteLLM)."""

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._pushes = Pushes(len(place.region_of))
        self._loads = [0] * len(place.region_of)

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        loads = self._loads
        return self.least(nodes, [loads[node] for node in nodes])

    def sent(self, node: int, asked: Asked, now: float) -> None:
        super().sent(node, asked, now)
        self._pushes.add(node, asked.prompt, now)
        self._loads[node] += 1

    def reported(self, node: int, report: Report, now: float) -> None:
        super().reported(node, report, now)
        self._pushes.reported(node, report.at, self.rtts[node])
        self._loads[node] = report.running + report.waiting + self._pushes.count(node)


class PeakEwma(Policy):
    """The cheaper of two drawn by lot; cost is a latency that jumps up and decays, times requests under way.

    Finagle, Linkerd and tower (`PeakEwma`, `p2c`), with Linkerd's constants; a sample ends at the first token.
    """

    DECAY_S = 10.0
    DEFAULT_S = 0.030

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._peaks = [(self.DEFAULT_S, 0.0)] * len(place.region_of)
        """Node -> latency and when it was so."""

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        if len(nodes) == 1:
            return nodes[0]
        one, other = self.rng.sample(nodes, 2)
        return one if self._cost(one, now) <= self._cost(other, now) else other

    def first(self, node: int, asked: Asked, told: Told, now: float) -> None:
        value, since = self._peaks[node]
        weight = exp((since - now) / self.DECAY_S)
        decayed = value * weight
        peak = told.ttft_s if told.ttft_s >= decayed else decayed + told.ttft_s * (1 - weight)
        self._peaks[node] = (peak, now)

    def _cost(self, node: int, now: float) -> float:
        value, since = self._peaks[node]
        return value * exp((since - now) / self.DECAY_S) * (self.in_flight[node] + 1)
