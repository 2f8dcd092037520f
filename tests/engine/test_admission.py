from __future__ import annotations

import re

import pytest

from edgeproxy.protocol.openai.errors import ApiError
from engine import admission
from engine.executor.base import Limits
from engine.sequence import GenerationRequest
from engine.step import Sampling

LIMITS = Limits(slots=2, blocks=8, step_tokens=16, context=100, vocab=10)


def request(prompt: int, max_tokens: int) -> GenerationRequest:
    return GenerationRequest("r", (1,) * prompt, Sampling(), max_tokens)


def test_a_request_of_exactly_the_room_fits() -> None:
    assert admission.room(LIMITS) == 100
    admission.check_fits(60, 40, LIMITS)


def test_a_request_over_the_room_is_told_what_would_fit() -> None:
    with pytest.raises(ApiError) as caught:
        admission.check_fits(60, 41, LIMITS)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "max_tokens")
    assert error.recovery == {"max_tokens_that_fit": 40}


def test_a_prompt_over_the_room_is_told_to_shorten() -> None:
    with pytest.raises(ApiError, match="shorten 'prompt\\[3\\]' below 100") as caught:
        admission.check_fits(100, 1, LIMITS, "prompt[3]")
    assert caught.value.param == "prompt[3]"
    assert caught.value.recovery == {"max_tokens_that_fit": 0}


def test_a_pool_smaller_than_the_context_is_the_room() -> None:
    small = Limits(slots=2, blocks=2, step_tokens=16, context=100, vocab=10)
    assert admission.room(small) == 32


@pytest.mark.parametrize(
    ("blocks", "why"),
    [(2, "32 tokens per request (as many as its KV pool)"), (8, "100 tokens per request (the model's context)")],
)
def test_what_bounds_a_request_is_named(blocks: int, why: str) -> None:
    with pytest.raises(ApiError, match=re.escape(why)):
        admission.check_fits(60, 41, Limits(2, blocks, step_tokens=16, context=100, vocab=10))


def test_a_guarantee_is_for_all_of_max_tokens() -> None:
    assert admission.blocks_needed(request(20, 100), admission.Mode.GUARANTEE, 70) == 8


@pytest.mark.parametrize(("max_tokens", "known", "blocks"), [(100, 20, 4), (100, 70, 7), (100, 110, 8), (1, 20, 2)])
def test_an_optimistic_start_gets_what_is_known_and_a_little(max_tokens: int, known: int, blocks: int) -> None:
    assert admission.blocks_needed(request(20, max_tokens), admission.Mode.OPTIMISTIC, known) == blocks
