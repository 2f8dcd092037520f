from __future__ import annotations

import pytest

from engine.gauges import Gauges
from engine.step import Row, StepPlan, StepResult


def step(*counts: int, seconds: float) -> tuple[StepPlan, StepResult]:
    rows = tuple(Row(slot, 0, (1,) * (count if count > 1 else 0), (0,), True) for slot, count in enumerate(counts))
    return StepPlan(1, rows), StepResult(1, (), 10.0, 10.0 + seconds)


def test_nothing_is_known_before_the_first_step() -> None:
    gauges = Gauges()
    assert (gauges.prefill_tokens_per_s, gauges.step_ms) == (0, 0)


def test_the_prefill_rate_is_tokens_by_time_of_prefill_steps() -> None:
    gauges = Gauges()
    for _ in range(5):
        gauges.stepped(*step(100, seconds=0.1))
        gauges.stepped(*step(1, 1, 1, seconds=9.0))
    assert gauges.prefill_tokens_per_s == pytest.approx(1000)


def test_a_small_tail_weighs_little_in_the_prefill_rate() -> None:
    gauges = Gauges()
    gauges.stepped(*step(1000, seconds=1.0))
    gauges.stepped(*step(2, seconds=0.02))
    assert gauges.prefill_tokens_per_s == pytest.approx(1000, rel=0.03)


def test_step_time_follows_the_steps() -> None:
    gauges = Gauges()
    gauges.stepped(*step(1, seconds=0.01))
    assert gauges.step_ms == pytest.approx(10)
    for _ in range(100):
        gauges.stepped(*step(1, seconds=0.02))
    assert gauges.step_ms == pytest.approx(20, rel=0.01)


def test_the_slowest_abort_is_kept() -> None:
    gauges = Gauges()
    for steps in (0, 2, 1):
        gauges.freed(steps)
    assert (gauges.aborts, gauges.abort_steps_max) == (3, 2)
