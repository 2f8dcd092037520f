"""The bound to hold others against: it sees every node as it is, and tries the request on a copy of each."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from edgeproxy.sim.clock import Clock
from edgeproxy.sim.node import Job, Node
from edgeproxy.sim.policies.base import Hold, Place, Policy
from edgeproxy.sim.workload import Asked

if TYPE_CHECKING:
    from edgeproxy.sim.run import Run

ANSWER = 128
"""Tokens that the memory of its own request's answer is taken to need; its first token does not depend on them."""


class Oracle(Policy):
    """Greedy: the smallest first-token time for this request if nobody else came after it."""

    def __init__(self, place: Place, rng: Random, run: Run) -> None:
        super().__init__(place, rng)
        self._run = run

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        alive = [node for node in nodes if self._run.nodes[node].alive] or nodes
        best, least = alive[0], float("inf")
        trips = self._run.plan.network.rtt_s[self.place.home]
        for node in sorted(alive, key=lambda node: trips[self.place.region_of[node]]):
            trip = trips[self.place.region_of[node]]
            if trip >= least:
                break
            time = trip / 2 + self._first_token(node, asked, now, trip / 2)
            if time < least:
                best, least = node, time
        return best

    def _first_token(self, number: int, asked: Asked, now: float, away: float) -> float:
        """Seconds from now until the node has it, where the request arrives there `away` seconds from now."""
        clock = Clock()
        clock.now = now
        seen: list[float] = []

        def first(job: Job[object]) -> None:
            if job.owner is asked:
                seen.append(clock.now)
                clock.stop()

        node: Node[object] = self._run.nodes[number].copy(clock, first)
        for flight in self._run.coming[number]:
            there = flight.request
            job: Job[object] = Job(flight, there.asked.prompt, there.output, there.asked.blocks)
            clock.at(flight.sent_at + flight.trip / 2, node.submit, job)
        clock.at(now + away, node.submit, Job[object](asked, asked.prompt, ANSWER, asked.blocks))
        clock.run()
        return seen[0] - now if seen else float("inf")
