"""A request that asked to be told is refused at once when its first token would come too late."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from engine.executor.base import Limits
from engine.gauges import ANSWERS
from engine.refusals import NO_RETRY
from tests.engine.scheduling import Bench

LIMITS = Limits(slots=2, blocks=80, step_tokens=100, context=640, vocab=1000)


def measured() -> Bench:
    """A bench that runs 100 tokens of prefill a second."""
    bench = Bench(LIMITS, quantum_s=1e6)
    bench.add("first", 100, 1)
    bench.run()
    assert bench.gauges.prefill_tokens_per_s == 100
    return bench


def test_what_can_be_met_runs_and_what_cannot_is_refused_with_the_time_it_would_take() -> None:
    bench = measured()
    with pytest.raises(ApiError) as caught:
        bench.add("a", 300, 1, within_s=2.9)
    error = caught.value
    assert (error.status, error.code) == (429, "latency_budget_exceeded")
    assert error.recovery == {"expected_ms": 3000}
    assert error.headers == (NO_RETRY,), "waiting does not help"
    assert "alone takes about 3000 ms here, and the latency budget leaves 2900" in error.message
    assert bench.scheduler.idle
    bench.add("b", 300, 1, within_s=3.1)
    bench.run()
    assert bench.deltas["b"]


def test_what_is_cached_takes_no_time() -> None:
    bench = measured()
    request = bench.add("a", 300, 1)
    bench.run()
    bench.add("b", [*request.prompt, 1], 1, within_s=0.2)
    bench.run()
    assert bench.deltas["b"]


def test_prompts_that_go_first_count() -> None:
    bench = measured()
    bench.add("a", 250, 1)
    with pytest.raises(ApiError, match="latency_budget_exceeded") as caught:
        bench.add("b", 300, 1, within_s=4)
    assert caught.value.recovery == {"expected_ms": 5500, "retry_after_ms": 2500}
    bench.add("c", 100, 1, within_s=1.5)  # shorter than what runs: it goes first
    bench.run()
    assert bench.deltas["c"]


def test_waiting_for_a_place_counts() -> None:
    bench = measured()
    for number in range(ANSWERS):
        bench.add(f"known{number}", 10, 50)
        bench.run()
    for name in ("a", "b"):
        bench.add(name, 10, 50)
    bench.run(until=lambda: len(bench.tokens("b")) > 9)
    with pytest.raises(ApiError, match="latency_budget_exceeded"):
        bench.add("c", 10, 1, within_s=5)
    bench.add("d", 10, 1)
    bench.run()
    assert bench.deltas["d"]


def test_before_anything_was_measured_nobody_is_refused() -> None:
    bench = Bench(LIMITS)
    bench.add("a", 300, 1, within_s=0.001)
    bench.run()
    assert bench.deltas["a"]


def test_nobody_is_refused_for_answers_whose_length_nobody_knows() -> None:
    bench = measured()
    for name in ("a", "b"):
        bench.add(name, 10, 500)
    bench.run(until=lambda: len(bench.tokens("b")) > 9)
    bench.add("c", 10, 1, within_s=5)
    bench.run()
    assert bench.deltas["c"]


def test_what_prompts_take_beside_streams_keeps_nobody_from_an_idle_node() -> None:
    """Rates measured under load would refuse all, and so never change."""
    bench = measured()
    bench.add("stream", 10, 300)
    for number in range(40):
        bench.add(f"{number}", 20, 1)
        bench.run(until=lambda name=f"{number}": bool(bench.finishes(name)))  # type: ignore[misc]
    bench.run()
    assert bench.gauges.pace is not None
    assert bench.gauges.pace.prompt_tokens_per_s < 50
    bench.add("alone", 100, 1, within_s=2)
    bench.run()
    assert bench.deltas["alone"]


@given(
    busy=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 60)), max_size=4),
    prompt=st.integers(1, 300),
    within_ms=st.integers(1, 8000),
    known=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_on_an_idle_node_a_refusal_is_not_to_be_tried_again_and_any_other_is_let_in_then(
    busy: list[tuple[int, int]], prompt: int, within_ms: int, known: bool
) -> None:
    bench = measured()
    for number in range(ANSWERS * known):
        bench.add(f"known{number}", 10, 20)
        bench.run()
    for number, (tokens, most) in enumerate(busy):
        bench.add(f"busy{number}", tokens, most)
    bench.run(until=lambda: bench.scheduler.load().step > 3)
    refusal = _refusal(bench, "first", prompt, within_ms)
    bench.run()
    again = _refusal(bench, "again", prompt, within_ms)
    assert again is None or NO_RETRY in again.headers
    if refusal is not None:
        told = {name for name, _ in refusal.headers}
        assert told == ({b"x-should-retry"} if NO_RETRY in refusal.headers else {b"retry-after", b"retry-after-ms"})
        assert ("retry_after_ms" in (refusal.recovery or {})) is (NO_RETRY not in refusal.headers)
    bench.run()


def _refusal(bench: Bench, name: str, prompt: int, within_ms: int) -> ApiError | None:
    try:
        bench.add(name, prompt, 1, within_s=within_ms / 1000)
    except ApiError as refusal:
        return refusal
    return None
