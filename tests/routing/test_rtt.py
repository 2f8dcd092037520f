from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.rtt import UNMEASURED_S, RttEstimator


def test_the_first_sample_and_the_next_follow_rfc_6298() -> None:
    rtt = RttEstimator()
    assert (rtt.srtt, rtt.network, rtt.minimum(0), rtt.age(5)) == (None, UNMEASURED_S, None, inf)
    rtt.probe(0.040, 0)
    assert (rtt.srtt, rtt.rttvar) == (0.040, 0.020)
    rtt.probe(0.048, 5)
    assert (rtt.srtt, rtt.rttvar) == pytest.approx((0.041, 0.017))
    assert rtt.network == pytest.approx(0.041 + 2 * 0.017)
    assert rtt.age(7) == 2


def test_the_minimum_forgets_after_five_minutes_but_never_the_last() -> None:
    rtt = RttEstimator()
    rtt.probe(0.010, 0)
    rtt.probe(0.050, 200)
    assert rtt.minimum(299) == 0.010
    assert rtt.minimum(311) == 0.050
    assert rtt.minimum(10_000) == 0.050


def test_the_kernel_is_believed_only_when_it_agrees_with_the_probes() -> None:
    rtt = RttEstimator()
    assert not rtt.kernel(0.040, 0)  # nothing to agree with yet
    rtt.probe(0.040, 0)
    assert not rtt.kernel(0.000_02, 1)  # what a relay on this machine reads
    assert rtt.srtt == 0.040
    assert rtt.age(1) == 1
    assert rtt.kernel(0.030, 1)
    assert rtt.srtt == pytest.approx(0.040 * 7 / 8 + 0.030 / 8)


def test_the_kernel_cannot_lower_its_own_threshold() -> None:
    rtt = RttEstimator()
    rtt.probe(0.040, 0)
    for second in range(100):
        rtt.kernel(0.029, second)
    assert rtt.minimum(100) == 0.040
    assert not rtt.kernel(0.021, 100)


def test_a_node_that_claims_more_time_than_passed_is_at_no_negative_distance() -> None:
    rtt = RttEstimator()
    rtt.probe(-1.0, 0)
    assert (rtt.srtt, rtt.minimum(0)) == (0.0, 0.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1)), min_size=1, max_size=60))
def test_the_minimum_is_that_of_the_window_to_ten_seconds(steps: list[tuple[float, float]]) -> None:
    rtt, now, samples = RttEstimator(), 0.0, []
    for pause, sample in steps:
        now += pause
        rtt.probe(sample, now)
        samples.append((now, sample))
    found = rtt.minimum(now)
    assert found is not None
    assert min(sample for _, sample in samples) <= found
    assert min(sample for at, sample in samples if at > now - 310) <= found
    assert found <= min(sample for at, sample in samples if at >= now - 290)
    assert rtt.srtt is not None
    assert -1e-9 <= rtt.srtt <= 1 + 1e-9
