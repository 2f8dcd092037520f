"""A whole fleet: nothing is lost, a seed repeats a run, faults hurt as much as they must, and no policy peeks."""

from __future__ import annotations

import ast
from math import inf
from pathlib import Path

import pytest

from edgeproxy.sim import policies
from edgeproxy.sim.edge import Outcome
from edgeproxy.sim.faults import Outage
from edgeproxy.sim.policies.catalog import ORACLES, POLICIES, chosen
from edgeproxy.sim.run import Run
from edgeproxy.sim.workload import Asked, Request
from tests.sim.small import limits, plan, poisson, simulate, step_s

ROUTERS = chosen("all")
FLAPPING = [Outage((0, 1), float(at), at + 3.0) for at in range(2, 40, 6)]


@pytest.mark.parametrize("policy", ROUTERS)
def test_every_request_ends_once_whatever_dies(policy: str) -> None:
    outages = [*FLAPPING, Outage((2, 3, 4, 5), 10.0, 12.0)]
    run = Run(plan(outages=outages, limits=limits(queue=8)), POLICIES[policy])
    result = run.run(poisson(40.0, 1500, 1, output=60, shared=50))
    # `Run` itself refuses to close a request twice.
    assert sum(result.outcomes) == 1500
    assert len(result.ttfts) == result.outcomes[Outcome.ANSWERED] + result.outcomes[Outcome.CUT]
    assert result.outcomes[Outcome.CUT] > 0
    for node in run.nodes:
        assert not node.waiting and not node.prefilling and not node.decoding
    for edge in run.edges:
        assert not edge.held and not any(edge.policy.in_flight)
    assert not any(run.coming)


@pytest.mark.parametrize("policy", ROUTERS)
def test_a_seed_repeats_a_run_to_the_bit(policy: str) -> None:
    runs = [simulate(policy, plan(noise=True), poisson(20.0, 300, 3, shared=20)) for _ in range(2)]
    assert runs[0].ttfts == runs[1].ttfts
    assert runs[0].events == runs[1].events


@pytest.mark.parametrize("policy", ROUTERS)
def test_a_lonely_request_takes_its_round_trip_and_its_work(policy: str) -> None:
    request = Request(Asked(1, 7.0, 100, (), 0), 1, 5)
    result = simulate(policy, plan(), iter([request]))
    trips = {0.001, 0.060}
    assert any(result.ttfts[0] == pytest.approx(trip + step_s(0, 100)) for trip in trips)


@pytest.mark.parametrize("policy", [name for name in ROUTERS if name not in ("round-robin", "peak-ewma", "least-load")])
def test_an_idle_fleet_is_used_at_home(policy: str) -> None:
    result = simulate(policy, plan(regions=3), poisson(0.5, 200, 2, shared=0))
    summary = result.summary()
    if policy in ("edgeproxy", "nearest", "skylb"):
        assert summary.away < 0.05
    assert summary.failed == 0


def test_a_dead_region_costs_retries_until_it_is_known_and_no_failure() -> None:
    dead = plan(outages=[Outage((0, 1), 21.0, 60.0)])
    summary = simulate("edgeproxy", dead, poisson(40.0, 3000, 4)).summary()
    assert summary.failed == 0
    assert 0 < summary.retried < 0.02
    assert summary.cut < 20


def test_with_nobody_left_requests_fail_after_the_attempts_there_are() -> None:
    dead = plan(outages=[Outage(range(6), 0.5, inf)])
    result = simulate("nearest", dead, poisson(5.0, 50, 4))
    assert result.outcomes[Outcome.FAILED] > 40


def test_a_refusal_goes_elsewhere() -> None:
    small = plan(limits=limits(queue=1, slots=1))
    summary = simulate("nearest", small, poisson(100.0, 400, 4, output=2)).summary()
    assert summary.retried > 0.1
    assert summary.answered > 200


def test_stale_reports_make_a_policy_worse_that_trusts_them() -> None:
    requests = {"rate": 60.0, "count": 1500, "seed": 5, "output": 40}
    fresh, stale = (
        simulate("gorgo", plan(report_s=0.25, stale_s=late), poisson(**requests)).summary()  # type: ignore[arg-type]
        for late in (0.0, 8.0)
    )
    assert stale.ttft_p95_s > 1.2 * fresh.ttft_p95_s


def test_a_herd_is_spread_by_counting_own_sends() -> None:
    herd = [Request(Asked(number, 30.0, 200, (), 0), 0, 20) for number in range(96)]
    slow = simulate("nearest", plan(), iter(herd)).summary()
    ours = simulate("edgeproxy", plan(), iter(herd)).summary()
    assert ours.ttft_p99_s < 0.6 * slow.ttft_p99_s


@pytest.mark.parametrize("policy", ROUTERS)
def test_no_policy_beats_who_knows_the_future_by_more_than_noise(policy: str) -> None:
    speeds = [1.0, 0.5, 2.0, 1.0, 0.7, 1.5]
    fleet = plan(speeds=speeds)
    bound = simulate("oracle", fleet, poisson(25.0, 500, 6, shared=60)).summary()
    other = simulate(policy, fleet, poisson(25.0, 500, 6, shared=60)).summary()
    assert other.ttft_mean_s > 0.98 * bound.ttft_mean_s


def test_policies_never_see_the_service_model() -> None:
    """Neither by import, nor by what they are given."""
    allowed = {"Report", "PrefixCache"}
    folder = Path(policies.__file__).parent
    for file in folder.glob("*.py"):
        if file.stem in (*ORACLES, "catalog"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("edgeproxy.sim"):
                names = {alias.name for alias in node.names}
                seen = node.module.removeprefix("edgeproxy.sim").startswith((".policies", ".workload"))
                assert seen or names <= allowed, f"{file.name} imports {names} from {node.module}"
    assert not {"output", "ends_at"} & set(Asked._fields)


def test_what_policies_are_called_is_checked() -> None:
    assert chosen("nearest, gorgo,nearest") == ["nearest", "gorgo"]
    assert "oracle" not in chosen("all")
    with pytest.raises(ValueError, match="no policy is named 'best'; there are"):
        chosen("best")
