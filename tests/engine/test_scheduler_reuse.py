"""KV that was computed is found again, by those who may, and never before it is there."""

from __future__ import annotations

import pytest

from engine.step import Finish
from tests.engine.fake_executor import expected
from tests.engine.scheduling import EVER_S, LIMITS, ROOMY, Bench


def test_a_prefix_that_was_computed_is_not_computed_again() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    first = bench.add("a", 50, 4)
    bench.run()
    steps = len(bench.executor.plans)
    bench.add("b", [*first.prompt, 1, 2], 4)
    bench.run()
    assert bench.cached("b") == 48
    assert [row.count for plan in bench.executor.plans[steps:] for row in plan.rows] == [4, 1, 1, 1]
    assert bench.tokens("b") == expected([*first.prompt, 1, 2], 4)
    assert (bench.gauges.blocks_reused, bench.gauges.blocks_computed) == (3, 5)


def test_the_next_turn_of_a_chat_finds_the_answer_too() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    first = bench.add("a", 20, 60)
    bench.run()
    known = [*first.prompt, *bench.tokens("a")]
    bench.add("b", [*known, 7, 8, 9], 3)
    bench.run()
    assert bench.cached("b") == (len(known) - 1) // 16 * 16  # the last token was sampled, but never run
    assert bench.tokens("b") == expected([*known, 7, 8, 9], 3)


@pytest.mark.parametrize(("prompt", "cached"), [(16, 0), (17, 16), (32, 16), (33, 32)])
def test_the_last_prompt_token_is_always_run(prompt: int, cached: int) -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    for name in ("a1", "a2"):
        bench.add(name, prompt, 2)
        bench.run()
    assert (bench.cached("a1"), bench.cached("a2")) == (0, cached)
    assert bench.tokens("a1") == bench.tokens("a2")


def test_tenants_of_different_salts_share_nothing() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    for name, salt in (("a1", b"one"), ("a2", b"two"), ("a3", b"one")):
        bench.add(name, 40, 2, salt=salt)
        bench.run()
    assert (bench.cached("a1"), bench.cached("a2"), bench.cached("a3")) == (0, 0, 32)


def test_a_prompt_that_waits_for_its_turn_finds_what_was_computed_meanwhile() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.add("a1", 200, 2)
    bench.add("a2", 200, 2)
    bench.run()
    assert bench.cached("a1") == 0
    assert bench.cached("a2") >= 160
    assert bench.tokens("a1") == bench.tokens("a2") == expected(bench.requests["a1"].prompt, 2)


def test_two_that_compute_the_same_at_the_same_time_keep_one_copy() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    for name in ("a1", "a2"):
        bench.add(name, 16, 64)
    bench.run(until=lambda: len(bench.tokens("a2")) > 40)
    load = bench.scheduler.load()
    assert load.blocks_spare >= ROOMY.blocks - 2 * 5
    bench.run()
    assert bench.tokens("a1") == bench.tokens("a2") == expected(bench.requests["a1"].prompt, 64)


def test_only_what_a_completed_step_computed_is_reused() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.add("a1", 100, 2)
    bench.submit()
    bench.submit()
    bench.abort("a1")
    bench.collect()
    bench.collect()
    bench.add("a2", 100, 2)
    bench.run()
    assert bench.cached("a2") == 0
    bench.add("a3", 100, 2)
    bench.run(until=lambda: len(bench.executor.plans) >= 8)
    bench.run()
    assert bench.cached("a3") == 96


def test_a_sequence_whose_logits_are_not_finite_leaves_nothing_to_reuse() -> None:
    bench = Bench(ROOMY, quantum_s=EVER_S)
    bench.executor.diverges_at = 50
    bench.add("a1", 50, 2)
    bench.run()
    assert bench.finishes("a1") == [Finish.ERROR]
    assert bench.scheduler.load().blocks_free == ROOMY.blocks
    bench.executor.diverges_at = None
    bench.add("a2", 50, 2)
    bench.run()
    assert bench.cached("a2") == 0


def test_what_is_promised_is_not_spare_and_comes_back_with_the_end() -> None:
    bench = Bench()
    bench.add("a", 8, 88)
    assert bench.scheduler.load().blocks_spare == LIMITS.blocks - 6
    bench.abort("a")
    assert bench.scheduler.load().blocks_spare == LIMITS.blocks


def test_a_request_that_shares_what_others_hold_needs_only_the_rest() -> None:
    bench = Bench()
    first = bench.add("a", 100, 20)
    bench.run(until=lambda: len(bench.tokens("a")) > 1)
    bench.add("b", [*first.prompt, 1], 10)
    assert bench.scheduler.load().running == 2
    bench.run()
    assert bench.tokens("b") == expected([*first.prompt, 1], 10)
