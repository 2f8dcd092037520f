from __future__ import annotations

from itertools import groupby
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.sim.fleet import PROBE_S, Region, replay

FAR = Region("far", 0.180, 0.020)
MID = Region("mid", 0.060, 0.020)


def ticks(seconds: float, step: float = 0.25) -> list[float]:
    return [number * step for number in range(int(seconds / step))]


def test_the_nearest_region_answers_and_the_first_token_is_its_round_trip_and_its_work() -> None:
    served = replay([FAR, MID, Region("near", 0.010, 0.030)], ticks(60), Random(1))
    assert {one.region for one in served} == {"near"}
    assert [one.first_token_s for one in served] == [pytest.approx(0.040)] * len(served)


def test_a_dead_nearest_region_moves_everything_to_the_next_and_back_again() -> None:
    near = Region("near", 0.010, 0.020, dead=(21.0, 50.0))
    served = replay([FAR, MID, near], ticks(100), Random(1))
    assert [region for region, _ in groupby(served, key=lambda one: one.region)] == ["near", "mid", "near"]
    away = [one for one in served if one.region == "mid"]
    assert all(21 <= one.at < 50 + PROBE_S for one in away)
    # What the death cost: one refusal each until breaker or probe knew of it, and nothing after that probe.
    assert {one.attempts for one in away if one.at < 25} == {1, 2}
    assert sum(one.attempts == 2 for one in away) <= 7
    assert {one.attempts for one in away if one.at >= 25} == {1}
    assert {one.reason for one in away if one.attempts == 1} == {"failover"}


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_home_does_not_flap_between_regions_whose_noise_overlaps(seed: int) -> None:
    regions = [Region("a", 0.040, noise_s=0.010), Region("b", 0.044, noise_s=0.010)]
    served = replay(regions, ticks(600, 1.0), Random(seed))
    # The first probe may mislead; after that one move is all that the minimum can ask for.
    assert len(list(groupby(served, key=lambda one: one.region))) <= 2


def test_with_every_region_dead_requests_fail_and_recovery_is_noticed() -> None:
    regions = [Region("a", 0.01, dead=(10, 30)), Region("b", 0.05, dead=(10, 30))]
    served = replay(regions, ticks(60), Random(1))
    assert all((one.region is None) == (10 <= one.at < 30) for one in served)
    assert {one.reason for one in served if 15 <= one.at < 30} == {"least-bad"}
    assert served[-1].region == "a"
