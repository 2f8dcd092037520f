"""A step's prefill is bounded by time: what a token costs is learnt, also how much more it costs far into a prompt."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from engine.chunks import LEAST_CHUNK, LEAST_LONE, TILE, Chunks, PrefillCost

SHARE_S = 0.040


def seconds(each: float, back: float, tokens: int, start: int) -> float:
    return tokens * (each + back * (start + tokens / 2))


def learnt(each: float, back: float, starts: list[int], tokens: int = 24) -> PrefillCost:
    cost = PrefillCost()
    for start in starts:
        cost.took(tokens, tokens * start + tokens * tokens // 2, seconds(each, back, tokens, start))
    return cost


@given(each=st.floats(1e-5, 1e-2), back=st.floats(0, 2), start=st.integers(0, 4000))
def test_what_a_token_costs_anywhere_is_learnt_from_one_long_prompt(each: float, back: float, start: int) -> None:
    """back: what 1,000 positions add, in what a token costs at the beginning."""
    back *= each / 1000
    cost = learnt(each, back, list(range(0, 4000, 100)))
    assert cost.of(24, start) == pytest.approx(seconds(each, back, 24, start), rel=0.15)


@given(each=st.floats(1e-5, 1e-2), back=st.floats(0, 1e-5), starts=st.lists(st.integers(0, 8000), min_size=1))
def test_whatever_was_seen_a_cost_is_positive_and_grows_with_the_position(
    each: float, back: float, starts: list[int]
) -> None:
    cost = learnt(each, back, starts)
    assert 0 < cost.of(1, 0) <= cost.of(1, 4000)
    assert cost.within(1.0, 4000) <= cost.within(1.0, 0)


@given(
    each=st.floats(1e-5, 1e-3),
    back=st.floats(0, 1e-6),
    prompts=st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 500)), min_size=1, max_size=6),
    room=st.integers(1, 128),
    share_s=st.floats(0.001, 0.1),
)
def test_a_plan_takes_no_longer_than_its_time_but_for_the_least_that_is_worth_a_step(
    each: float, back: float, prompts: list[tuple[int, int]], room: int, share_s: float
) -> None:
    cost = learnt(each, back, list(range(0, 4000, 100)))
    chunks = Chunks(cost, share_s, room)
    taken = [(start, chunks.take(start, wanted)) for start, wanted in prompts]
    assert taken[0][1] > 0
    assert sum(count for _, count in taken) <= room
    assume(sum(count for _, count in taken) > LEAST_CHUNK)
    assert sum(cost.of(count, start) for start, count in taken) <= share_s * 1.6


def test_far_into_a_prompt_chunks_are_smaller() -> None:
    cost = learnt(0.0008, 7e-7, list(range(0, 4000, 100)))
    taken = [Chunks(cost, SHARE_S, 128).take(start, 1000) for start in (0, 1000, 4000)]
    assert taken == sorted(taken, reverse=True)
    assert taken[0] == 4 * TILE
    assert taken[-1] < TILE


def steps_of(fixed_s: float, noise: float = 0.0, steps: int = 200) -> list[tuple[int, float]]:
    """Tokens and seconds of the steps of one prompt after the other, each in chunks of what was learnt by then."""
    rng, cost, start, found = random.Random(1), PrefillCost(), 0, list[tuple[int, float]]()
    while len(found) < steps:
        tokens = Chunks(cost, 2 * SHARE_S, 128, LEAST_LONE).take(start, 4000 - start)
        took = fixed_s * (len(found) > steps // 2) + seconds(0.0006, 4.6e-7, tokens, start)
        took *= rng.lognormvariate(0, noise)
        cost.took(tokens, tokens * start + tokens * tokens // 2, took)
        found.append((tokens, took))
        start = (start + tokens) % 4000
    return found


@pytest.mark.parametrize("noise", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("fixed_s", [0.03, 0.06, 0.09, 0.2])
def test_what_a_step_takes_however_few_its_tokens_are_makes_no_smaller_steps(fixed_s: float, noise: float) -> None:
    """On a machine that others use; smaller steps would take as long, so that only more of them were taken."""
    usual, late = steps_of(0.0, noise)[150:], steps_of(fixed_s, noise)[150:]
    tokens, before = (sum(found for found, _ in steps) / len(steps) for steps in (late, usual))
    assert tokens > 0.6 * before
    assert sum(took for _, took in late) / len(late) < 1.5 * (fixed_s + 2 * SHARE_S)


def test_a_prompt_alone_takes_its_steps_fixed_parts_too() -> None:
    cost = PrefillCost()
    for tokens in (20, 60, 100) * 20:
        cost.took(tokens, tokens * tokens // 2, 0.03 + tokens * 0.001)
    assert cost.fixed_s == pytest.approx(0.03, rel=0.1)
    assert cost.alone(240, 0, 0.08) == pytest.approx(0.24 + 3 * 0.03, rel=0.1)


def test_the_rest_of_a_prompt_is_not_left_for_a_step_of_its_own() -> None:
    cost = learnt(0.0008, 7e-7, list(range(0, 4000, 100)))
    assert Chunks(cost, SHARE_S, 128).take(1792, 24) == 24
    assert Chunks(cost, SHARE_S, 128).take(1792, 100) == 24
    assert Chunks(cost, SHARE_S, 128).take(1792, 28) == 28
    assert Chunks(cost, SHARE_S, 128).take(1792, 33) == 24


def test_before_anything_is_known_a_prompt_gets_the_whole_step() -> None:
    assert Chunks(PrefillCost(), SHARE_S, 100).take(0, 1000) == 100
