from __future__ import annotations

from dataclasses import replace

import pytest

from engine.gauges import BUCKETS, WINDOW_S, Gauges, Histogram, Utilisation
from engine.step import Row, RowResult, StepPlan, StepResult


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


def test_a_histogram_doubles_its_buckets() -> None:
    histogram = Histogram()
    for us in (0, 0.5, 1, 3, 3.9, 4, 1e9):
        histogram.observe(us * 1e-6)
    assert histogram.counts[:4] == [2, 1, 2, 1]
    assert histogram.counts[BUCKETS - 1] == 1
    assert histogram.view()["buckets"] == {"1": 2, "2": 1, "4": 2, "8": 1, str(1 << (BUCKETS - 1)): 1}


def test_a_quantile_lies_within_its_bucket_and_never_beyond_the_longest() -> None:
    histogram = Histogram()
    assert histogram.quantile_us(0.5) == 0
    for us in [2.5, 3.5] * 49 + [100] * 2:
        histogram.observe(us * 1e-6)
    assert histogram.quantile_us(0.5) == pytest.approx(3.0, abs=0.1)
    assert 64 <= histogram.quantile_us(0.99) <= 100 == pytest.approx(histogram.quantile_us(1.0))
    assert histogram.view()["count"] == 100


def test_a_clock_that_steps_back_counts_as_nothing() -> None:
    histogram = Histogram()
    histogram.observe(-1.0)
    assert (histogram.counts[0], histogram.sum_us) == (1, 0)


def test_the_reuse_ratio_is_of_blocks() -> None:
    gauges = Gauges()
    assert gauges.kvr == 0
    gauges.blocks_reused, gauges.blocks_computed = 3, 1
    assert gauges.kvr == 0.75


def test_utilisation_is_of_one_window_of_busy_time() -> None:
    use = Utilisation()
    assert (use.susi, use.worker_busy, use.faults_per_token, use.due) == (None, None, None, True)
    use.sample((5.0, 7.0), 1000, 50)
    assert (use.susi, use.due) == (None, False)
    use.busy_s += 2 * WINDOW_S
    assert use.due
    use.sample((5.0 + WINDOW_S, 7.0 + 2 * WINDOW_S), 1003, 150)
    assert use.shares == (0.5, 1.0)
    assert (use.worker_busy, use.faults_per_token, use.due) == (0.75, 0.03, False)
    assert use.susi == pytest.approx(1 - 0.25 / 0.75)
    assert (use.worker_s, use.page_faults) == ((WINDOW_S, 2 * WINDOW_S), 3)


def test_use_of_late_is_of_all_time_and_an_idle_engines_goes_to_nothing() -> None:
    use = Utilisation()
    assert use.use_lately(0.0) is None
    use.sample((0.0, 0.0), 0, 0)
    for step in range(1000):  # half of each 10 ms
        use.worked(0.005, until=0.01 * step + 0.005)
    use.sample((4.0, 4.0), 0, 0)
    assert use.worker_busy == pytest.approx(0.8)
    assert use.use_lately(9.995) == pytest.approx(0.4, rel=0.02)
    use.worked(10.0, until=20.0)
    assert use.use_lately(20.0) == pytest.approx(0.8, rel=0.02)
    assert (use.use_lately(23.1) or 0) < 0.05 * 0.8
    assert use.use_lately(700.0) == pytest.approx(0)


def test_steps_leave_the_use_of_late_behind() -> None:
    gauges = Gauges()
    plan, result = step(1, seconds=5.0)
    gauges.stepped(plan, result, woken=9.0)
    gauges.utilisation.shares = (1.0,)
    assert gauges.utilisation.use_lately(15.0) == pytest.approx(1, rel=0.01)
    assert gauges.utilisation.use_lately(600.0) == pytest.approx(0)


def test_equal_workers_are_perfectly_even_and_idle_ones_tell_nothing() -> None:
    use = Utilisation()
    use.sample((0.0, 0.0), 0, 0)
    for cpu, susi in (((0.0, 0.0), None), ((0.9, 0.9), 1.0)):
        use.busy_s += WINDOW_S
        use.sample(cpu, 0, 0)
        assert use.susi == susi


def test_tokens_are_what_steps_ran_and_sampled() -> None:
    gauges = Gauges()
    plan, result = step(20, 1, seconds=0.01)
    gauges.stepped(plan, result._replace(rows=(RowResult(0), RowResult(1, (5,)))))
    assert (gauges.prefilled, gauges.generated, gauges.tokens) == (20, 1, 21)


def test_forced_tokens_are_an_answers_and_teach_nothing_of_prompts() -> None:
    gauges = Gauges()
    plan, result = step(20, 1, seconds=0.01)
    gauges.stepped(plan, result)
    rate, pace, cost = gauges.prefill_tokens_per_s, gauges.pace, gauges.prefill_cost.of(10, 0)
    jump = plan._replace(rows=tuple(replace(row, forced=True) for row in plan.rows if row.tokens))
    gauges.stepped(jump, result)
    gauges.jumped(7)
    assert (gauges.prefill_tokens_per_s, gauges.prefill_cost.of(10, 0)) == (rate, cost)
    assert gauges.pace == pace
    assert (gauges.prefilled, gauges.generated, gauges.forced) == (20, 7, 7)
