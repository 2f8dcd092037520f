"""A request that asked to be told is refused at once when its first token would come too late."""

from __future__ import annotations

import pytest

from edgeproxy.protocol.openai.errors import ApiError
from engine.executor.base import Limits
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
    assert error.recovery == {"expected_ms": 3000, "retry_after_ms": 50}
    assert (b"retry-after-ms", b"50") in error.headers
    assert "after about 3000 ms, and the latency budget leaves 2900" in error.message
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
