"""How many tokens a prompt has is learnt from what nodes count, the chat template's own included."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.length import Length


def counted(size: int, messages: int) -> int:
    """By a template that begins with a system prompt of its own."""
    return round(24 + 4 * messages + 0.22 * (size - 28 * messages))


def test_one_answer_tells_of_the_template_that_short_prompts_mostly_consist_of() -> None:
    length = Length()
    assert length.tokens(60, 1) == 15.0
    length.counted(60, 1, 37)
    assert length.tokens(60, 1) == pytest.approx(37, abs=3)
    assert length.tokens(45, 1) == pytest.approx(33, abs=4)
    assert length.tokens(4000, 1) == pytest.approx(1022, rel=0.15), "of a long text it tells little"


def test_one_long_answer_tells_of_the_text_and_not_of_the_template() -> None:
    length = Length()
    length.counted(8000, 1, 4000)
    assert length.tokens(8000, 1) == pytest.approx(4000, rel=0.05)
    assert length.tokens(60, 1) < 60


@pytest.mark.parametrize("seed", range(3))
def test_prompts_of_any_length_and_number_of_messages_are_foretold_after_thirty(seed: int) -> None:
    rng, length = Random(seed), Length()
    for _ in range(30):
        size, messages = rng.choice((60, 200, 900, 5000)), rng.choice((1, 2, 5, 11))
        size += 28 * messages
        length.counted(size, messages, round(counted(size, messages) * rng.gauss(1.0, 0.05)))
    for size, messages in ((70, 1), (400, 3), (3000, 9), (12_000, 1)):
        assert length.tokens(size, messages) == pytest.approx(counted(size, messages), rel=0.15, abs=5)


def test_a_node_that_miscounts_once_changes_little() -> None:
    length = Length()
    for _ in range(20):
        for size in (60, 300, 2000):
            length.counted(size, 1, counted(size, 1))
    before = length.tokens(300, 1)
    length.counted(300, 1, 10**9)
    assert length.tokens(300, 1) == pytest.approx(before, rel=0.3)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 500), st.integers(1, 10**12)), max_size=40))
def test_whatever_nodes_say_an_estimate_is_a_length_that_a_text_can_have(told: list[tuple[int, int, int]]) -> None:
    length = Length()
    for size, messages, tokens in told:
        length.counted(size, messages, tokens)
        assert 1.0 <= length.tokens(size, messages) <= 4096 + 64 * messages + 2 * size
        assert 0.0 <= length.held(size, messages, size // 2) <= length.tokens(size, messages)


def test_what_is_held_begins_with_the_template() -> None:
    length = Length()
    for _ in range(10):
        for size in (60, 300, 2000):
            length.counted(size, 1, counted(size, 1))
    assert length.held(2000, 1, 0) == 0.0
    assert length.held(2000, 1, 256) == pytest.approx(28 + 0.22 * 256, abs=8)
    assert length.held(2000, 1, 2000) == length.tokens(2000, 1)


def test_what_every_prompt_finds_cached_is_known_after_a_few() -> None:
    length = Length()
    for cached in (0, 16, 16, 16):
        length.found(cached)
    assert length.usual == pytest.approx(16, abs=3)
