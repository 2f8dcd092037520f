from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.executor.base import Limits
from engine.warmup import PROMPT, WarmUp, WarmupError
from tests.engine.fake_executor import LIMITS, FakeExecutor


def test_a_token_comes_out_greedy_and_sampled_from_prefill_and_from_decode() -> None:
    executor = FakeExecutor()
    WarmUp(executor).finish()
    prefill, decode = executor.plans
    assert [row.opens.temperature for row in prefill.rows if row.opens] == [0.0, 1.0]
    assert [row.tokens for row in decode.rows] == [(), ()]


def test_it_runs_while_others_go_on() -> None:
    executor = FakeExecutor()
    WarmUp(executor)
    assert len(executor.plans) == 2


def test_logits_that_are_not_finite_are_not_warm() -> None:
    with pytest.raises(WarmupError, match=r"step 1 sampled nothing in slots \[0, 1\]"):
        WarmUp(FakeExecutor(diverges_at=PROMPT)).finish()


@given(slots=st.integers(1, 4), blocks=st.integers(1, 4), step_tokens=st.integers(2, 20), context=st.integers(2, 64))
def test_it_keeps_within_any_limits(slots: int, blocks: int, step_tokens: int, context: int) -> None:
    limits = Limits(slots, blocks, step_tokens, context, vocab=5)
    executor = FakeExecutor(script=lambda history: 1, built_for=limits)
    WarmUp(executor).finish()
    assert executor.plans[0].rows


def test_of_one_slot_it_uses_one() -> None:
    executor = FakeExecutor(built_for=LIMITS._replace(slots=1))
    WarmUp(executor).finish()
    assert [len(plan.rows) for plan in executor.plans] == [1, 1]
