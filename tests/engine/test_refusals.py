"""A refusal names what is short, with the node's figures, and a remedy that works."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from engine import refusals
from engine.admission import Mode
from engine.executor.base import Limits
from engine.gauges import ANSWERS
from engine.step import BLOCK_TOKENS
from tests.engine.scheduling import Bench

LIMITS = Limits(slots=3, blocks=40, step_tokens=64, context=640, vocab=1000)


def refused(bench: Bench, prompt: int, max_tokens: int, within_s: float | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        bench.add("refused", prompt, max_tokens, within_s=within_s)
    assert caught.value.status == 429
    return caught.value


def run_all(bench: Bench) -> None:
    bench.run()
    assert bench.scheduler.idle


@pytest.mark.parametrize(
    ("wait_s", "wait_ms", "retry_after"), [(0.0, 50, b"1"), (1.2, 1200, b"2"), (1e9, 30000, b"30")]
)
def test_header_and_body_tell_the_same_time_to_come_again(wait_s: float, wait_ms: int, retry_after: bytes) -> None:
    error = refusals.no_slot(16, "none may wait", wait_s)
    assert error.recovery == {"retry_after_ms": wait_ms}
    assert dict(error.headers) == {b"retry-after-ms": str(wait_ms).encode(), b"retry-after": retry_after}


def test_full_slots_are_told_as_slots_and_no_shorter_answer_is_offered() -> None:
    bench = Bench(LIMITS, queue=1)
    for name in "abcd":
        bench.add(name, 4, 4)
    error = refused(bench, 4, 400)
    assert error.code == "slots_full"
    assert "All 3 slots of this node are taken, and 1 wait, the most that may" in error.message
    assert error.recovery is not None
    assert "max_tokens_that_fit" not in error.recovery
    run_all(bench)


def test_full_memory_is_told_as_memory_with_what_is_needed_and_what_there_is() -> None:
    bench = Bench(LIMITS, queue=0)
    bench.add("a", 20, 460)
    error = refused(bench, 100, 300)
    assert error.code == "oom_predicted"
    assert "needs memory for 400 tokens, of which this node has 160 to spare, and none may wait" in error.message
    assert "lower max_tokens to 60" in error.message
    assert error.recovery is not None
    assert error.recovery["max_tokens_that_fit"] == 60
    run_all(bench)


def test_behind_others_a_shorter_answer_would_not_be_let_in_so_none_is_offered() -> None:
    bench = Bench(LIMITS, queue=1)
    bench.add("a", 20, 460)
    bench.add("b", 100, 300)
    error = refused(bench, 10, 300)
    assert (error.code, error.recovery and error.recovery["max_tokens_that_fit"]) == ("oom_predicted", 0)
    assert "needs memory for 400 tokens" in error.message, "what is short is what the next in turn needs"
    with pytest.raises(ApiError):
        bench.add("shorter", 10, 1)
    run_all(bench)


@pytest.mark.parametrize(("slots", "awaited"), [(2, "one of 2 slots"), (8, "memory")])
def test_a_wait_is_told_with_what_is_waited_for(slots: int, awaited: str) -> None:
    bench = Bench(Limits(slots, blocks=20, step_tokens=64, context=320, vocab=1000), max_wait_s=5.0)
    for number in range(ANSWERS):
        bench.add(f"known{number}", 8, 60)
        bench.run()
    bench.add("a", 8, 150)
    bench.add("b", 8, 150)
    error = refused(bench, 8, 100)
    assert (error.code, f"would wait here for {awaited} for about" in error.message) == ("wait_predicted", True)
    run_all(bench)


@given(
    mode=st.sampled_from(Mode),
    running=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 300)), max_size=4),
    prompt=st.integers(1, 200),
    max_tokens=st.integers(1, 400),
)
@settings(deadline=None, max_examples=60)
def test_what_is_said_to_fit_is_taken_at_once(
    mode: Mode, running: list[tuple[int, int]], prompt: int, max_tokens: int
) -> None:
    bench = Bench(LIMITS, queue=0, mode=mode)
    for number, (tokens, most) in enumerate(running):
        try:
            bench.add(f"{number}", tokens, most)
        except ApiError:
            break
    full = bench.scheduler.load().running == LIMITS.slots
    try:
        bench.add("newcomer", prompt, max_tokens)
    except ApiError as error:
        assert error.code == ("slots_full" if full else "oom_predicted")
        fits = (error.recovery or {}).get("max_tokens_that_fit", 0)
        assert fits < max_tokens
        if fits:
            bench.add("again", prompt, fits)
            assert bench.scheduler.load().waiting == 0
            if mode is Mode.GUARANTEE and (prompt + fits) % BLOCK_TOKENS == 0:
                assert bench.scheduler.load().blocks_spare == 0, "no less than there is"
    run_all(bench)


def test_a_node_that_does_not_know_yet_how_long_answers_are_asks_to_be_tried_again_soon() -> None:
    bench = Bench(LIMITS, queue=0)
    for name in "abc":
        bench.add(name, 4, 200)
    bench.run(until=lambda: len(bench.tokens("c")) > 5)
    assert bench.gauges.pace is not None
    error = refused(bench, 4, 200)
    assert (error.recovery or {})["retry_after_ms"] == refusals.UNKNOWN_S * 1000
    run_all(bench)
