"""Small fleets and made-up steps: linear in everything, so that times can be told by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random

from edgeproxy.sim.network import Network
from edgeproxy.sim.node import NodeLimits
from edgeproxy.sim.policies.catalog import POLICIES
from edgeproxy.sim.result import Result
from edgeproxy.sim.run import FleetPlan, Run
from edgeproxy.sim.steps import Recording, StepTimes
from edgeproxy.sim.workload import Asked, Request

BASE_S, ROW_S, TOKEN_S = 0.004, 0.0005, 0.0001


def step_s(rows: int, prefill: int) -> float:
    return BASE_S + ROW_S * rows + TOKEN_S * prefill


def rest_s(prefill: int) -> float:
    """Of a chunk smaller than the smallest recorded: a step of one row is what the least work costs."""
    return step_s(1, 0) + (step_s(0, 48) - step_s(1, 0)) * prefill / 48


def recording(ratios: Sequence[float] = (1.0,)) -> Recording:
    grid = product((0, 1, 16), (0, 48, 512), (0, 4096))
    cells = [cell for cell in grid if cell[0] or cell[1]]
    return Recording("made up", {cell: [step_s(*cell[:2]) * ratio for ratio in ratios] for cell in cells})


def times() -> StepTimes:
    return StepTimes(recording())


def line(count: int, apart_s: float = 0.060) -> Network:
    """Regions on a line, so far from one to the next."""
    trips = [[max(abs(a - b) * apart_s, 0.001) for b in range(count)] for a in range(count)]
    return Network([f"r{i}" for i in range(count)], trips, jitter=0.0)


def plan(regions: int = 3, nodes: int = 2, **changes: object) -> FleetPlan:
    base = FleetPlan(line(regions), [1.0] * (regions * nodes), times(), block_tokens=16, noise=False)
    return replace(base, **changes)  # type: ignore[arg-type]


def poisson(
    rate: float, count: int, seed: int, *, prompt: int = 200, output: int = 20, regions: int = 3, shared: int = 0
) -> Iterator[Request]:
    """`shared`: so many conversations, each with a prefix of half the prompt."""
    rng, now = Random(seed), 0.0
    for number in range(count):
        now += rng.expovariate(rate)
        session = rng.randrange(shared) + 1 if shared else 0
        blocks = tuple(session * 1000 + i for i in range(prompt // 32)) if shared else ()
        yield Request(Asked(number, now, prompt, blocks, session), rng.randrange(regions), output)


def simulate(policy: str, plan: FleetPlan, requests: Iterator[Request]) -> Result:
    return Run(plan, POLICIES[policy]).run(requests)


def limits(**changes: int) -> NodeLimits:
    return replace(NodeLimits(), **changes)
