from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.chunks import LEAST_CHUNK, LONE_QUANTA, QUANTA, TILE
from engine.executor.base import Limits
from engine.gauges import Gauges
from engine.scheduler import PRIORITY_S, Scheduler
from engine.step import Finish, StepPlan
from engine.waiting import OLDEST_EVERY
from tests.engine.fake_executor import expected
from tests.engine.scheduling import EVER_S, LIMITS, ROOMY, Bench


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
@settings(deadline=None)
def test_equal_requests_start_in_order_of_arrival(lengths: list[int]) -> None:
    bench = Bench()
    for number, max_tokens in enumerate(lengths):
        bench.add(chr(97 + number), 10, max_tokens)
    bench.run()
    started = [bench.steps(name)[0] for name in bench.requests]
    assert started == sorted(started)


@given(st.integers(60, 600), st.integers(1, 30), st.integers(1, 4))
@settings(deadline=None, max_examples=25)
def test_a_long_prompt_ends_however_many_short_ones_keep_coming(long: int, short: int, at_once: int) -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.add("long", long, 1)
    for number in range(10_000):
        if bench.finishes("long"):
            break
        while bench.scheduler.load().running <= at_once:
            bench.add(f"{number}", [number % 1000] * short, 1)
            number += 10_000
        bench.submit()
        bench.submit()
        bench.collect()
    turns = -(-long // (ROOMY.step_tokens - at_once))
    assert len(bench.executor.plans) <= OLDEST_EVERY * turns + 2 * OLDEST_EVERY


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.add("long", 600, 1)
    for _ in range(3):
        bench.submit()
        bench.collect()
    bench.add("short", 20, 1)
    asked = len(bench.executor.plans)
    bench.run()
    assert bench.steps("short")[-1] <= asked + 2
    assert bench.tokens("long") == expected(bench.requests["long"].prompt, 1)


def test_what_a_better_priority_asks_runs_first_but_the_other_is_not_forgotten() -> None:
    bench = Bench(Limits(slots=1, blocks=80, step_tokens=32, context=640, vocab=1000))
    bench.add("running", 4, 20)
    bench.add("later", 4, 1, priority=1)
    bench.add("urgent", 4, 1)
    bench.now += 2 * PRIORITY_S
    bench.add("too late", 4, 1)
    bench.run()
    assert list(bench.deltas) == ["running", "urgent", "later", "too late"]


def test_of_two_prompts_the_better_priority_goes_first() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.add("a", 100, 1)
    bench.submit()
    bench.add("b", 300, 1, priority=-1)
    bench.run()
    assert list(bench.deltas) == ["b", "a"]


def beside_a_stream(quantum_s: float) -> Bench:
    """A stream of one token a step, and 200 tokens of prompts a second, as the bench's clock has it."""
    bench = Bench(Limits(slots=3, blocks=80, step_tokens=256, context=1000, vocab=1000), quantum_s=quantum_s)
    bench.add("stream", 200, 100)
    bench.run(until=lambda: bool(bench.tokens("stream")))
    assert [row.count for row in bench.executor.plans[0].rows] == [200]
    return bench


def prompts(plan: StepPlan | None) -> int:
    assert plan is not None
    return sum(len(row.tokens) for row in plan.rows)


def test_a_prompt_beside_a_stream_takes_one_quantum_of_the_measured_rate() -> None:
    bench = beside_a_stream(quantum_s=0.3)
    bench.add("b", 300, 1)
    assert prompts(bench.submit()) == pytest.approx(60, abs=TILE)


@pytest.mark.parametrize("many", range(1, 2 * QUANTA))
def test_many_prompts_beside_a_stream_take_a_quantum_each_but_no_more_than_a_few(many: int) -> None:
    bench = Bench(Limits(slots=8, blocks=200, step_tokens=256, context=1000, vocab=1000), quantum_s=0.1)
    bench.add("stream", 200, 100)
    bench.run(until=lambda: bool(bench.tokens("stream")))
    for name in "abcdefgh"[:many]:
        bench.add(name, 200, 1)
    assert prompts(bench.submit()) == pytest.approx(20 * min(many, QUANTA), abs=TILE)


def test_prompts_that_nobody_waits_beside_take_larger_chunks() -> None:
    bench = beside_a_stream(quantum_s=0.1)
    bench.add("b", 300, 1)
    beside = prompts(bench.submit())
    bench.abort("stream")
    bench.collect()
    alone = prompts(bench.submit())
    assert beside == pytest.approx(20, abs=TILE)
    assert alone == pytest.approx(20 * LONE_QUANTA, abs=TILE)


def test_a_chunk_is_never_smaller_than_what_is_worth_a_step_however_slow_the_machine() -> None:
    bench = beside_a_stream(quantum_s=1e-6)
    bench.add("b", 300, 1)
    bench.add("c", 300, 1)
    assert prompts(bench.submit()) == LEAST_CHUNK


def test_a_newcomer_among_prompts_alone_waits_for_the_step_that_runs_and_no_other() -> None:
    bench = beside_a_stream(quantum_s=0.1)
    bench.abort("stream")
    bench.add("long", 900, 1)
    bench.run(until=lambda: len(bench.steps("long")) > 1)
    assert bench.scheduler.unhurried
    bench.submit()
    bench.add("newcomer", 20, 1)
    bench.collect()
    plan = bench.submit()
    assert plan is not None
    own, other = plan.rows
    assert (own.count, own.sample) == (20, True)
    assert bench.gauges.prefill_cost.of(other.count, other.start) < 0.15, "somebody waits: about a quantum of another"


@pytest.mark.parametrize("steps", range(4))
def test_at_whichever_step_a_short_prompt_comes_a_long_one_costs_it_one_lone_step_and_a_few_quanta(steps: int) -> None:
    """Also where it is the turn of the oldest to go first."""
    bench = beside_a_stream(quantum_s=0.1)
    bench.abort("stream")
    bench.add("long", 800, 1)
    bench.run(until=lambda: len(bench.steps("long")) > steps)
    if not bench.scheduler.in_flight:
        bench.submit()
    runs = len(bench.executor.plans)
    bench.add("newcomer", 20, 1)
    bench.run(until=lambda: bool(bench.tokens("newcomer")))
    since = bench.executor.plans[runs : bench.steps("newcomer")[-1]]
    assert sum(len(row.tokens) for plan in since for row in plan.rows) <= 20 * 4 + 2 * TILE


def test_a_joining_request_is_in_the_next_plan_beside_the_decode_rows() -> None:
    bench = Bench()
    bench.add("a", 4, 20)
    bench.submit()
    bench.collect()
    bench.add("b", 5, 20)
    plan = bench.submit()
    assert plan is not None
    assert [(row.start, row.count, row.sample) for row in plan.rows] == [(4, 1, True), (0, 5, True)]


def test_a_long_prompt_takes_only_what_the_decode_rows_leave() -> None:
    bench = Bench(quantum_s=EVER_S)
    bench.add("a", 1, 20)
    bench.submit()
    bench.add("b", 30, 1)
    plans = [bench.submit()]
    for _ in range(4):
        bench.collect()
        plans.append(bench.submit())
    rows = [[(row.start, row.count, row.sample) for row in plan.rows] for plan in plans if plan]
    assert rows[0] == [(1, 1, True), (0, 7, False)]
    assert rows[1] == [(2, 1, True), (7, 7, False)]
    assert rows[4] == [(5, 1, True), (28, 2, True)]


def test_a_decode_row_is_planned_before_the_token_it_runs_is_known() -> None:
    bench = Bench()
    bench.add("a", 3, 3)
    first, second = bench.submit(), bench.submit()
    assert first is not None
    assert second is not None
    assert (second.rows[0].start, second.rows[0].tokens, second.rows[0].sample) == (3, (), True)
    assert second.rows[0].opens is None


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_no_row_is_planned_past_max_tokens(max_tokens: int) -> None:
    bench = Bench()
    bench.add("a", 3, max_tokens)
    bench.run()
    assert sum(row.sample for plan in bench.executor.plans for row in plan.rows) == max_tokens


def preempting() -> Bench:
    """Three that fit at their start and not at their end."""
    bench = Bench(mode=Mode.OPTIMISTIC)
    for name in "abc":
        bench.add(name, 12, 130)
    assert bench.scheduler.load().running == 3
    bench.run()
    return bench


def test_a_preempted_sequence_says_what_it_would_have_said() -> None:
    bench = preempting()
    assert bench.gauges.preemptions > 0
    for name, request in bench.requests.items():
        assert bench.tokens(name) == expected(request.prompt, 130)
        assert bench.finishes(name) == [Finish.LENGTH]


def test_the_oldest_is_never_preempted() -> None:
    bench = preempting()
    opened = Counter(row.opens.seed for plan in bench.executor.plans for row in plan.rows if row.opens)
    assert opened[bench.requests["a"].sampling.seed] == 1
    assert sum(opened.values()) == 3 + bench.gauges.preemptions


def test_recomputation_is_no_reuse() -> None:
    bench = preempting()
    assert bench.gauges.blocks_reused == 0
    assert bench.gauges.blocks_computed == 3 * 9
    assert [bench.cached(name) for name in "abc"] == [0, 0, 0]


def test_a_preempted_sequence_can_be_aborted_while_it_leaves_and_while_it_waits() -> None:
    for further in range(12):
        bench = Bench(mode=Mode.OPTIMISTIC)
        for name in "abc":
            bench.add(name, 12, 130)
        bench.run(until=lambda bench=bench: bench.gauges.preemptions > 0)  # type: ignore[misc]
        for _ in range(further):
            bench.submit()
            bench.collect()
        bench.abort("c")
        bench.run()
        assert bench.finishes("c") == [Finish.ABORT]
        assert bench.tokens("a") == expected(bench.requests["a"].prompt, 130)
        assert bench.tokens("b") == expected(bench.requests["b"].prompt, 130)
        assert bench.gauges.abort_steps_max <= 2


def test_an_aborted_sequence_keeps_its_blocks_until_the_last_plan_that_names_it_completes() -> None:
    bench = Bench()
    bench.add("a", 8, 100)
    bench.submit()
    bench.submit()
    bench.abort("a")
    assert bench.finishes("a") == [Finish.ABORT]
    assert bench.submit() is None
    bench.collect()
    assert bench.scheduler.load().blocks_spare < LIMITS.blocks
    bench.collect()
    assert bench.scheduler.load().blocks_spare == LIMITS.blocks
    assert bench.tokens("a") == []


def test_an_abort_of_what_waits_lets_the_next_in_at_once() -> None:
    bench = Bench()
    bench.add("a", 8, 88)
    bench.add("b", 60, 100)
    bench.add("c", 8, 8)
    assert bench.scheduler.load().waiting == 2
    bench.abort("b")
    assert bench.scheduler.load().running == 2


def test_a_large_request_at_the_head_is_not_overtaken() -> None:
    bench = Bench()
    bench.add("a", 8, 88)
    bench.add("b", 60, 100)
    bench.add("c", 1, 1)
    bench.run()
    order = [row.opens for plan in bench.executor.plans for row in plan.rows if row.opens]
    assert len(order) == 3
    waited = {name: next(d.timing.queue_s for d in bench.deltas[name] if d.timing) for name in "bc"}
    assert waited["b"] < waited["c"]


def test_a_full_queue_refuses_and_what_runs_is_unharmed() -> None:
    bench = Bench(queue=1)
    bench.add("a", 8, 88)
    bench.add("b", 60, 100)
    with pytest.raises(ApiError, match="oom_predicted") as caught:
        bench.add("c", 8, 8)
    assert caught.value.status == 429
    bench.run()
    assert (bench.finishes("a"), bench.finishes("b"), bench.finishes("c")) == ([Finish.LENGTH], [Finish.LENGTH], [])


def test_without_a_queue_what_can_start_at_once_is_taken() -> None:
    bench = Bench(queue=0)
    bench.add("a", 8, 8)
    bench.add("b", 8, 9)
    with pytest.raises(ApiError, match="oom_predicted"):
        bench.add("c", 90, 70)


def test_a_request_that_never_fits_is_refused_as_such() -> None:
    with pytest.raises(ApiError, match="context_length_exceeded"):
        Bench().add("a", 100, 61)


def test_logits_that_are_not_finite_end_one_sequence_alone() -> None:
    bench = Bench()
    bench.executor.diverges_at = 12
    bench.add("a", 10, 20)
    other = bench.add("b", 20, 20)
    bench.run()
    assert bench.finishes("a") == [Finish.ERROR]
    assert bench.tokens("b") == expected(other.prompt, 20)


def test_timing_splits_the_way_to_the_first_token() -> None:
    bench = Bench()
    bench.add("a", 8, 2)
    bench.now += 10
    bench.run()
    timed = [delta.timing for delta in bench.deltas["a"]]
    assert timed[0] is not None
    assert (timed[0].queue_s, timed[0].prefill_s, timed[0].first_s) == (11, 1, 1)
    assert timed[1:] == [None]


def test_dispatch_is_a_wake_after_idleness_and_a_gap_between_steps() -> None:
    bench = Bench()
    for name in "ab":
        bench.add(name, 4, 3)
        bench.run()
    gauges = bench.gauges
    assert (sum(gauges.wake.counts), sum(gauges.gap.counts)) == (2, 4)
    assert gauges.wake.sum_us == pytest.approx(2e6)  # the clock of the bench goes on a second at each look
    assert gauges.gap.sum_us == pytest.approx(4 * 2e6)


def test_an_answer_to_another_step_is_an_error() -> None:
    bench = Bench()
    bench.add("a", 8, 2)
    bench.submit()
    result = bench.executor.collect()
    bench.executor.plans.clear()
    with pytest.raises(RuntimeError, match="step 1"):
        bench.scheduler.complete(type(result)(result.step + 1, result.rows), 0.0)


def test_more_slots_than_step_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="9 slots"):
        Scheduler(Limits(slots=9, blocks=1, step_tokens=8, context=16, vocab=1), Gauges(), queue=1)


def test_no_sequence_misses_a_turn() -> None:
    bench = Bench()
    for name in "abc":
        bench.add(name, 2, 10)
    bench.run()
    sampled = Counter(row.slot for plan in bench.executor.plans for row in plan.rows if row.sample)
    assert set(sampled.values()) == {10}
    assert len(bench.executor.plans) == 10


def test_nobody_waits_for_a_rehearsal() -> None:
    """Else a proxy takes a node that has just started to be busy, and sends the first requests elsewhere."""
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.add("rehearsal", 300, 4, rehearsal=True)
    bench.submit()
    load = bench.scheduler.load()
    assert (load.running, load.waiting, load.waiting_prefill_tokens) == (0, 0, 0)
    bench.add("asked", 40, 1)
    assert bench.scheduler.load().waiting_prefill_tokens == 40
