"""Policies that go where the beginning of the prompt already is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from edgeproxy.sim.node import Report
from edgeproxy.sim.policies.base import Hold, Place, Policy, Prefixes, Pushes, Told
from edgeproxy.sim.workload import Asked


class CacheAware(Policy):
    """SGLang's router, `cache_aware`: the longest match, unless load is out of balance; then the shortest queue.

    As published (sgl-project/sglang#2114) a match counts from half of the prompt, and out of balance is a ratio above
    1.0001 and a difference above 32 requests; as nodes run 16 at a time, 3 is better here and is taken. Without a match
    the node with the smallest tree is taken, so that caches fill evenly.
    """

    MATCH = 0.5
    ABSOLUTE = 3
    RELATIVE = 1.0001

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._prefixes = Prefixes(place)
        self._sizes = [0] * len(place.region_of)
        """Node -> tokens sent there, the size of its tree."""

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        loads = [self.in_flight[node] for node in nodes]
        if max(loads) - min(loads) > self.ABSOLUTE and max(loads) > self.RELATIVE * min(loads):
            return self.least(nodes, loads)
        matches = [self._prefixes.tokens(node, asked) for node in nodes]
        longest = max(matches)
        if longest > self.MATCH * asked.prompt:
            return nodes[matches.index(longest)]
        return self.least(nodes, [self._sizes[node] for node in nodes])

    def sent(self, node: int, asked: Asked, now: float) -> None:
        super().sent(node, asked, now)
        self._sizes[node] += asked.prompt - self._prefixes.tokens(node, asked)
        self._prefixes.sent(node, asked)

    def reported(self, node: int, report: Report, now: float) -> None:
        super().reported(node, report, now)
        self._prefixes.reported(node, report)


class SelectivePush(Policy):
    """SkyLB (arXiv 2505.24095): push only where nothing waits; else to a region that has room; else hold here.

    Of those that can be pushed to, the longest prefix match; among equal ones the fewest own requests. `SLACK`: so many
    own sends that the last report cannot count close a node; of 1, 2 and 4 the best here.
    """

    SLACK = 1

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._prefixes = Prefixes(place)
        self._pushes = Pushes(len(place.region_of))

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        open_ = [node for node in nodes if self._eligible(node)]
        if not open_:
            return Hold(float("inf"))
        home = self.place.home
        local = [node for node in open_ if self.place.region_of[node] == home]
        if not local:  # the nearest region that has room; which of its nodes, its own tree says
            near = min(open_, key=self.rtts.__getitem__)
            local = [node for node in open_ if self.place.region_of[node] == self.place.region_of[near]]
        matches = [self._prefixes.tokens(node, asked) for node in local]
        longest = max(matches)
        best = [node for node, match in zip(local, matches, strict=True) if match == longest]
        return self.least(best, [self.in_flight[node] for node in best])

    def sent(self, node: int, asked: Asked, now: float) -> None:
        super().sent(node, asked, now)
        self._prefixes.sent(node, asked)
        self._pushes.add(node, asked.prompt, now)

    def reported(self, node: int, report: Report, now: float) -> None:
        super().reported(node, report, now)
        self._prefixes.reported(node, report)
        self._pushes.reported(node, report.at, self.rtts[node])

    def _eligible(self, node: int) -> bool:
        report = self.reports[node]
        return (report is None or not report.waiting) and self._pushes.count(node) < self.SLACK


class Gorgo(Policy):
    """GORGO (arXiv 2602.11688): round trip + queued tokens * k + running tokens * k * f + uncached tokens * k.

    `k`, one number for the whole fleet, begins at the prototype's 0.094 ms and then follows what this proxy sees, as
    its authors tune it to their fleet. So it is with `f`: of 1 (the prototype's), 0.3, 0.1, 0.03 and 0 the best here is
    taken. Loads are the last report's; the prototype does not count its own sends since.
    """

    K_S = 94e-6
    RUNNING = 0.03
    _WEIGHT = 0.01

    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._prefixes = Prefixes(place)
        self._k = self.K_S
        self._seconds = self._tokens = 0.0

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        return self.least(nodes, [self._cost(node, asked) for node in nodes])

    def sent(self, node: int, asked: Asked, now: float) -> None:
        super().sent(node, asked, now)
        self._prefixes.sent(node, asked)

    def first(self, node: int, asked: Asked, told: Told, now: float) -> None:
        self._seconds += self._WEIGHT * (told.prefill_s - self._seconds)
        self._tokens += self._WEIGHT * (asked.prompt - told.cached - self._tokens)
        self._k = self._seconds / self._tokens

    def reported(self, node: int, report: Report, now: float) -> None:
        super().reported(node, report, now)
        self._prefixes.reported(node, report)

    def _cost(self, node: int, asked: Asked) -> float:
        report = self.reports[node]
        tokens = float(asked.prompt - self._prefixes.tokens(node, asked))
        if report is not None:
            tokens += report.prefill_tokens + self.RUNNING * (report.kv_tokens - report.kv_spare)
        return self.rtts[node] + tokens * self._k
