"""One run: a fleet, the proxies before it, and a stream of requests, until each of them has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random

from edgeproxy.sim.clock import Clock
from edgeproxy.sim.edge import Edge, Flight, Outcome
from edgeproxy.sim.faults import Outage
from edgeproxy.sim.network import Network
from edgeproxy.sim.node import Job, Node, NodeLimits, Report
from edgeproxy.sim.policies.base import Hold, Place, Policy, Told
from edgeproxy.sim.result import Result
from edgeproxy.sim.steps import StepTimes
from edgeproxy.sim.workload import Request

PROBE_S = 5.0
ATTEMPTS = 3
BACK_OFF_S = 1.0
"""A full node's Retry-After."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Everything of a run but its policy and its requests."""

    network: Network
    speeds: Sequence[float]
    """Of each node, region by region; 1 is as fast as the recording."""
    times: StepTimes
    limits: NodeLimits = field(default_factory=NodeLimits)
    block_tokens: int = 512
    outages: Sequence[Outage] = ()
    report_s: float = 1.0
    """Between two reports of a node to every proxy; each answer carries one, too."""
    stale_s: float = 0.0
    """How much later than by the distance reports are heard of."""
    noise: bool = True
    seed: int = 1

    @property
    def nodes_per_region(self) -> int:
        return len(self.speeds) // len(self.network.names)

    @property
    def region_of(self) -> tuple[int, ...]:
        return tuple(node // self.nodes_per_region for node in range(len(self.speeds)))


class Run:
    """`make` builds a policy for each proxy. `nodes` is for oracles and tests alone."""

    def __init__(self, plan: FleetPlan, make: Callable[[Place, Random, Run], Policy]) -> None:
        self.plan = plan
        self.clock = Clock()
        self.result = Result(len(plan.network.names))
        self.region_of = plan.region_of
        self._rng = Random(plan.seed)
        noise = Random(plan.seed + 1) if plan.noise else None
        self.nodes: list[Node[Flight]] = [
            Node(
                self.clock, plan.times, speed, plan.limits, plan.block_tokens, noise, self._node_first, self._node_done
            )
            for speed in plan.speeds
        ]
        names = plan.network.names
        self.edges = [
            Edge(
                region,
                make(Place(region, self.region_of, names, plan.block_tokens), Random(plan.seed + 100 + region), self),
                len(self.nodes),
            )
            for region in range(len(names))
        ]
        self.coming: list[list[Flight]] = [[] for _ in self.nodes]
        """Sent to each node and not there yet."""
        self._open = 0
        self._arriving = True
        self._requests: Iterator[Request] = iter(())

    def run(self, requests: Iterator[Request]) -> Result:
        """`requests`: in order of time, each to begin at the proxy of its region."""
        self._requests = requests
        self._probe()
        self._report()
        for outage in self.plan.outages:
            self.clock.at(outage.start, self._down, outage)
        self._next()
        self.result.events = self.clock.run()
        return self.result

    # A request on its way.

    def _next(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._arriving = False
            self._stop_if_over()
        else:
            self._open += 1
            self.clock.at(request.asked.at, self._arrive, Flight(request))

    def _arrive(self, flight: Flight) -> None:
        flight.held_since = self.clock.now
        self._next()
        self._ask(self.edges[flight.request.origin], flight)

    def _ask(self, edge: Edge, flight: Flight) -> bool:
        """False: it is held."""
        now = self.clock.now
        choice = edge.policy.choose(flight.request.asked, edge.open(now, flight.tried), now, now - flight.held_since)
        if isinstance(choice, Hold):
            edge.held.append(flight)
            if choice.until < inf:
                self.clock.at(max(choice.until, now), self._held_enough, edge, flight)
            return False
        self._send(edge, flight, choice)
        return True

    def _held_enough(self, edge: Edge, flight: Flight) -> None:
        if flight in edge.held:
            edge.held.remove(flight)
            self._ask(edge, flight)

    def _release(self, edge: Edge) -> None:
        """Something is known that was not: the oldest that are held ask again, as long as one is sent."""
        while edge.held:
            flight = edge.held.popleft()
            if not self._ask(edge, flight):
                edge.held.rotate(1)  # back to the front
                return

    def _send(self, edge: Edge, flight: Flight, node: int) -> None:
        now = self.clock.now
        flight.node, flight.sent_at = node, now
        flight.attempt += 1
        flight.trip = self.trip(edge, node)
        edge.started(node, now)
        edge.policy.sent(node, flight.request.asked, now)
        self.coming[node].append(flight)
        self.clock.at(now + flight.trip / 2, self._reach, flight)

    def _reach(self, flight: Flight) -> None:
        node = self.nodes[flight.node]
        self.coming[flight.node].remove(flight)
        asked = flight.request.asked
        if not node.alive:
            self.clock.at(self.clock.now + flight.trip / 2, self._lost, flight)
        elif not node.submit(Job(flight, asked.prompt, flight.request.output, asked.blocks)):
            self.clock.at(self.clock.now + flight.trip / 2, self._refused, flight)

    def _node_first(self, job: Job[Flight]) -> None:
        flight, now = job.owner, self.clock.now
        report = self.nodes[flight.node].report()
        self.clock.at(
            now + flight.trip / 2, self._first, flight, job.started - job.arrived, now - job.started, job.cached, report
        )

    def _node_done(self, job: Job[Flight]) -> None:
        self.clock.at(self.clock.now + job.owner.trip / 2, self._ended, job.owner)

    def _first(self, flight: Flight, queue_s: float, prefill_s: float, cached: int, report: Report) -> None:
        now, edge, node = self.clock.now, self.edges[flight.request.origin], flight.node
        flight.first_s = now - flight.request.asked.at
        flight.cached = cached
        edge.succeeded(node, now)
        edge.policy.first(node, flight.request.asked, Told(now - flight.sent_at, queue_s, prefill_s, cached), now)
        if not self.plan.stale_s:
            edge.policy.reported(node, report, now)
        self._release(edge)

    def _ended(self, flight: Flight) -> None:
        edge = self.edges[flight.request.origin]
        edge.policy.ended(flight.node, flight.request.asked, self.clock.now, served=True)
        self._close(flight, Outcome.ANSWERED)
        self._release(edge)

    # What goes wrong.

    def _lost(self, flight: Flight) -> None:
        """The connection broke: before the first token it is tried elsewhere."""
        now, edge = self.clock.now, self.edges[flight.request.origin]
        edge.broken(flight.node).failed(now)
        self._again(edge, flight)

    def _refused(self, flight: Flight) -> None:
        now, edge = self.clock.now, self.edges[flight.request.origin]
        edge.broken(flight.node).hold_off(BACK_OFF_S, now)
        self._again(edge, flight)

    def _again(self, edge: Edge, flight: Flight) -> None:
        edge.policy.ended(flight.node, flight.request.asked, self.clock.now, served=False)
        flight.tried += (flight.node,)
        if flight.first_s is not None:
            self._close(flight, Outcome.CUT)
        elif flight.attempt >= ATTEMPTS:
            self._close(flight, Outcome.FAILED)
        else:
            self._ask(edge, flight)

    def _close(self, flight: Flight, outcome: int) -> None:
        assert flight.outcome is None, f"request {flight.request.asked.number} ended twice"
        flight.outcome = outcome
        self.result.add(flight, self.region_of[flight.node])
        self._open -= 1
        self._stop_if_over()

    def _stop_if_over(self) -> None:
        if not self._arriving and not self._open:
            self.clock.stop()

    def _down(self, outage: Outage) -> None:
        for number in outage.nodes:
            for job in self.nodes[number].fail():
                self.clock.at(self.clock.now + job.owner.trip / 2, self._lost, job.owner)
        if outage.end < inf:
            self.clock.at(outage.end, self._up, outage)

    def _up(self, outage: Outage) -> None:
        for number in outage.nodes:
            self.nodes[number].alive = True

    # What proxies hear without asking for an answer.

    def trip(self, edge: Edge, node: int) -> float:
        return self.plan.network.trip(edge.region, self.region_of[node], self._rng)

    def _probe(self) -> None:
        now = self.clock.now
        for edge in self.edges:
            for number, node in enumerate(self.nodes):
                edge.probed(number, node.alive, now)
                if node.alive:
                    edge.policy.probed(number, self.trip(edge, number), now)
        self.clock.at(now + PROBE_S, self._probe)

    def _report(self) -> None:
        """Every node tells every proxy; the words travel as far as the proxy is away."""
        now, each = self.clock.now, self.plan.nodes_per_region
        for region, trips in enumerate(zip(*self.plan.network.rtt_s, strict=True)):
            numbers = range(region * each, region * each + each)
            told = [(number, self.nodes[number].report()) for number in numbers if self.nodes[number].alive]
            for edge, trip in zip(self.edges, trips, strict=True):
                self.clock.at(now + trip / 2 + self.plan.stale_s, self._heard, edge, told)
        self.clock.at(now + self.plan.report_s, self._report)

    def _heard(self, edge: Edge, told: Sequence[tuple[int, Report]]) -> None:
        for number, report in told:
            edge.policy.reported(number, report, self.clock.now)
        self._release(edge)
