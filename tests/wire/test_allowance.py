"""The allowance of resets."""

from __future__ import annotations

from edgeproxy.wire.allowance import Allowance


def test_a_burst_is_allowed_and_no_more() -> None:
    allowance = Allowance(burst=3, per_s=1, now=0)
    assert [allowance.take(0) for _ in range(5)] == [True, True, True, False, False]


def test_it_grows_again_with_time_but_not_beyond_the_burst() -> None:
    allowance = Allowance(burst=2, per_s=0.5, now=0)
    assert [allowance.take(0) for _ in range(2)] == [True, True]
    assert allowance.take(2)
    assert [allowance.take(1000) for _ in range(3)] == [True, True, False]
