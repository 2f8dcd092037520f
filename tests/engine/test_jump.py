"""Forced tokens are run together, and nobody could tell from the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission import Mode
from engine.executor.base import Limits
from engine.jump import MOST
from engine.step import Finish
from tests.engine.fake_executor import expected
from tests.engine.forms import Form
from tests.engine.scheduling import ROOMY, Bench

PROMPT = list(range(20))


def alone(form: Form, max_tokens: int = 60, stop_ids: tuple[int, ...] = (), limits: Limits = ROOMY) -> Bench:
    bench = Bench(limits)
    bench.add("a", PROMPT, max_tokens, stop_ids, constraint=form)
    bench.run()
    return bench


def one_by_one(form: Form, max_tokens: int = 60, stop_ids: tuple[int, ...] = ()) -> list[int]:
    return expected(PROMPT, max_tokens, stop_ids, constraint=form.anew())


def test_an_answer_has_the_same_tokens_in_fewer_steps() -> None:
    looking, blind = alone(Form(6)), alone(Form(6, looks=False))
    assert looking.tokens("a") == blind.tokens("a") == one_by_one(Form(6))
    assert len(blind.steps("a")) == 60
    assert len(looking.steps("a")) < 30
    assert looking.gauges.generated == blind.gauges.generated == 60
    assert looking.gauges.forced == 60 - len(looking.steps("a"))
    assert blind.gauges.forced == 0
    assert looking.gauges.prefilled == blind.gauges.prefilled == len(PROMPT)


def test_a_run_of_one_token_is_no_jump() -> None:
    bench = alone(form := Form(1))
    assert len(bench.steps("a")) == form.asked == 60


def test_the_first_token_can_be_forced_too() -> None:
    form = next(form for form in map(Form, range(2, 50)) if len(form.forced(9)) == 9)
    bench = alone(form)
    first = bench.deltas["a"][0]
    assert first.tokens == form.anew().forced(MOST)[: len(first.tokens)]
    assert len(first.tokens) >= 9
    assert first.timing is not None
    assert bench.tokens("a") == one_by_one(form)


@pytest.mark.parametrize("most", range(1, 40))
def test_no_token_comes_beyond_max_tokens(most: int) -> None:
    bench = alone(Form(9), most)
    assert bench.tokens("a") == one_by_one(Form(9), most)
    assert bench.finishes("a") == [Finish.LENGTH]


@pytest.mark.parametrize("ends", range(1, 40))
def test_it_ends_where_nothing_may_follow(ends: int) -> None:
    bench = alone(Form(9, ends))
    assert bench.tokens("a") == one_by_one(Form(9, ends))
    assert len(bench.tokens("a")) == ends
    assert bench.finishes("a") == [Finish.STOP]


def test_a_stop_id_ends_a_run() -> None:
    whole = one_by_one(Form(20))
    for stop in whole[3:30]:
        bench = alone(Form(20), stop_ids=(stop,))
        assert bench.tokens("a") == one_by_one(Form(20), stop_ids=(stop,))
        assert bench.finishes("a") == [Finish.STOP]


def test_a_step_runs_no_more_forced_tokens_than_all_can_wait_for() -> None:
    bench = Bench(ROOMY._replace(step_tokens=200, blocks=200))
    for name in "abcd":
        bench.add(name, PROMPT, 300, constraint=Form(10**6))
    bench.run()
    for name in "abcd":
        assert bench.tokens(name) == one_by_one(Form(10**6), 300)
    run = [sum(row.count - 1 for row in plan.rows if row.forced) for plan in bench.executor.plans]
    assert max(run) == MOST


def test_runs_are_cut_where_a_step_has_no_room() -> None:
    limits = Limits(slots=2, blocks=40, step_tokens=3, context=300, vocab=1000)
    bench = Bench(limits)
    for name in "ab":
        bench.add(name, PROMPT, 100, constraint=Form(10**6))
    bench.run()
    assert [bench.tokens(name) for name in "ab"] == [one_by_one(Form(10**6), 100)] * 2
    assert max(sum(row.count for row in plan.rows) for plan in bench.executor.plans) == 3


def test_log_probabilities_of_every_token_are_the_models() -> None:
    bench = Bench(ROOMY)
    form = Form(6)
    request = bench.add("a", PROMPT, 30, constraint=form)
    bench.abort("a")
    bench.deltas.clear()
    told = replace(request, request_id="b", sampling=replace(request.sampling, logprobs=2, seed=99))
    bench.scheduler.add(replace(told, constraint=Form(6)), bench.now)
    bench.requests["b"] = bench._by_seed[99] = told
    bench.run()
    assert bench.tokens("b") == one_by_one(Form(6), 30)
    assert sum(len(delta.logprobs) for delta in bench.deltas["b"]) == 30


@pytest.mark.parametrize("runs", [4, 30])
def test_preempted_in_the_midst_of_a_run_it_goes_on(runs: int) -> None:
    bench = Bench(ROOMY._replace(slots=4, blocks=9, step_tokens=24, context=120), mode=Mode.OPTIMISTIC)
    for name in "abcd":
        bench.add(name, [ord(name), *PROMPT], 80, constraint=Form(runs))
    bench.run()
    for name in "abcd":
        assert bench.tokens(name) == expected([ord(name), *PROMPT], 80, constraint=Form(runs))
        assert bench.finishes(name) == [Finish.LENGTH]
    assert bench.gauges.preemptions > 0


@pytest.mark.parametrize("steps", range(1, 12))
def test_left_in_the_midst_of_a_run_its_blocks_are_free(steps: int) -> None:
    bench = Bench(ROOMY)
    bench.add("a", PROMPT, 200, constraint=Form(12))
    bench.add("b", PROMPT, 40)
    bench.run(until=_passed(bench, steps))
    bench.abort("a")
    got = bench.tokens("a")
    bench.run()
    assert bench.finishes("a") == [Finish.ABORT]
    assert got == one_by_one(Form(12), 200)[: len(got)]
    assert bench.tokens("b") == expected(PROMPT, 40)
    assert bench.scheduler.load().blocks_spare == ROOMY.blocks
    assert bench.gauges.abort_steps_max <= 2


def _passed(bench: Bench, steps: int) -> Callable[[], bool]:
    return lambda: len(bench.executor.plans) >= steps


@settings(max_examples=40, deadline=None)
@given(
    forms=st.lists(st.tuples(st.integers(1, 12), st.none() | st.integers(1, 50)), min_size=1, max_size=8),
    step_tokens=st.integers(8, 64),
    mode=st.sampled_from(Mode),
    max_tokens=st.integers(1, 60),
    stop_every=st.integers(1, 40),
)
def test_whatever_runs_beside_it(
    forms: list[tuple[int, int | None]], step_tokens: int, mode: Mode, max_tokens: int, stop_every: int
) -> None:
    bench = Bench(ROOMY._replace(step_tokens=step_tokens, blocks=14), mode=mode)
    stops = tuple(range(0, 1000, stop_every * 7))
    for number, (runs, ends) in enumerate(forms):
        bench.add(f"{number}", PROMPT, max_tokens, stops, constraint=Form(runs, ends) if runs > 1 else None)
    bench.run()
    for number, (runs, ends) in enumerate(forms):
        whole = expected(PROMPT, max_tokens, stops, constraint=Form(runs, ends) if runs > 1 else None)
        assert bench.tokens(f"{number}") == whole
    assert bench.scheduler.load().blocks_spare == 14
