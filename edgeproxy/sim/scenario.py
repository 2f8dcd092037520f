"""From what a run is asked to be to a fleet and a stream of requests; the same for every policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from random import Random

from edgeproxy.sim.faults import herds, outages
from edgeproxy.sim.network import network
from edgeproxy.sim.node import NodeLimits
from edgeproxy.sim.run import FleetPlan
from edgeproxy.sim.steps import StepTimes, recorded
from edgeproxy.sim.workload import Demand, Request, Trace, read, requests

LOADS = {"light": (0.3, 0.0), "heavy": (0.8, 0.0), "skewed": (0.5, 0.5)}
"""Name -> load, and the share of requests that come to the first region alone."""


@dataclass(frozen=True, slots=True)
class Options:
    """A scenario as it is written down. Seconds and tokens."""

    trace: Path
    regions: int = 8
    nodes: int = 2
    """Of each region."""
    requests: int | None = None
    """None: as many as the trace has."""
    load: float = 0.5
    """Of what the fleet could compute if nothing were ever reused."""
    skew: float = 0.0
    """Share of requests that come to the first region, on top of its even part of the rest."""
    swing: float = 0.5
    speed: float = 8.0
    """Of the nodes' geometric mean, by the recording."""
    spread: float = 1.5
    """The fastest node is up to so many times as fast as that, the slowest so many times as slow."""
    context: int = 8192
    limits: NodeLimits = field(default_factory=NodeLimits)
    report_s: float = 1.0
    stale_s: float = 0.0
    jitter: float = 0.05
    fail: tuple[str, ...] = ()
    flap: tuple[str, ...] = ()
    herd: tuple[str, ...] = ()
    rtt: Path | None = None
    steps: Path | None = None
    noise: bool = True
    seed: int = 1


class Scenario:
    """Raises ValueError (FaultError) and OSError for options that cannot be used."""

    def __init__(self, options: Options) -> None:
        self.options = options
        recording = recorded(options.steps)
        self.source = recording.source
        times = StepTimes(recording)
        self._trace = read(options.trace).fitted(options.context)
        net = network(options.regions, options.rtt, options.jitter)
        speeds = _speeds(options, Random(options.seed))
        self.rate = options.load * capacity(speeds, times, self._trace, options.limits)
        """Requests per second, in mean."""
        self.plan = FleetPlan(
            network=net,
            speeds=speeds,
            times=times,
            limits=options.limits,
            block_tokens=self._trace.block_tokens,
            outages=outages(options.fail, options.flap, net.names, options.nodes),
            report_s=options.report_s,
            stale_s=options.stale_s,
            noise=options.noise,
            seed=options.seed,
        )
        weights = [(1 - options.skew) / options.regions] * options.regions
        weights[0] += options.skew
        stretch = len(self._trace.entries) / self._trace.span_s / self.rate
        self._demand = Demand(weights, stretch, options.swing, herds(options.herd))

    @property
    def count(self) -> int:
        return self.options.requests or len(self._trace.entries)

    def requests(self) -> Iterator[Request]:
        """Anew at each call, and the same."""
        return requests(self._trace, self._demand, self.count, Random(self.options.seed))


def capacity(speeds: list[float], times: StepTimes, trace: Trace, limits: NodeLimits) -> float:
    """Requests per second that the fleet could keep up with, all slots full and nothing reused."""
    prompt, rows = trace.mean_prompt, limits.slots
    decode = trace.mean_output * times.seconds(rows, 0, prompt) / rows
    return sum(speeds) / (prompt / times.prefill_rate() + decode)


def _speeds(options: Options, rng: Random) -> list[float]:
    if options.spread < 1:
        raise ValueError(f"a spread of {options.spread:g} is below 1, which stands for equal nodes")
    widest = log(options.spread)
    return [options.speed * exp(rng.uniform(-widest, widest)) for _ in range(options.regions * options.nodes)]
