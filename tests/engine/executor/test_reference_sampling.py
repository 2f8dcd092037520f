"""`sample`: the documented order, against arithmetic done another way and against its own statistics."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.executor.philox import uniform
from engine.executor.sampling import sample
from engine.step import Sampling

DRAWS = 10_000
LOGITS = np.array([1.0, 3.0, -2.0, 3.0, 0.5, 2.0, -30.0, 2.5], np.float32)


def plain(logits: list[float], sampling: Sampling, position: int) -> int:
    """By the words of Sampling's docstring, with lists and exact sums."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token] / sampling.temperature, token))
    ranked = ranked[: sampling.top_k or len(ranked)]
    weights = [math.exp((logits[token] - logits[ranked[0]]) / sampling.temperature) for token in ranked]
    total = math.fsum(weights)
    kept = next((n for n in range(1, len(ranked)) if math.fsum(weights[:n]) / total >= sampling.top_p), len(ranked))
    target = uniform(sampling.seed, position) * math.fsum(weights[:kept])
    return ranked[next((n for n in range(kept) if math.fsum(weights[: n + 1]) > target), kept - 1)]


def counts(logits: npt.NDArray[np.float32], sampling: Sampling) -> Counter[int]:
    return Counter(sample(logits, sampling, position) for position in range(DRAWS))


def softmax(logits: npt.NDArray[np.float32], temperature: float) -> npt.NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) / temperature)
    probabilities: npt.NDArray[np.float64] = weights / weights.sum()
    return probabilities


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=12),
    temperature=st.floats(0.1, 3.0),
    top_p=st.floats(0.05, 1.0),
    top_k=st.integers(0, 14),
    seed=st.integers(0, (1 << 64) - 1),
    position=st.integers(0, 8191),
)
def test_follows_the_documented_order(
    logits: list[float], temperature: float, top_p: float, top_k: int, seed: int, position: int
) -> None:
    sampling = Sampling(temperature, top_p, top_k, seed)
    assert sample(np.array(logits, np.float32), sampling, position) == plain(logits, sampling, position)


def test_temperature_zero_is_the_largest_with_ties_to_the_lowest_id() -> None:
    assert sample(LOGITS, Sampling(temperature=0.0, seed=9), 3) == 1


@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature: float) -> None:
    found, expected = counts(LOGITS, Sampling(temperature, seed=11)), softmax(LOGITS, temperature) * DRAWS
    common = [token for token in range(len(LOGITS)) if expected[token] >= 5]
    chi_square = sum((found[token] - expected[token]) ** 2 / expected[token] for token in common)
    assert chi_square < 24.3  # at most 7 degrees of freedom, p = 0.001
    assert sum(found[token] for token in common) > DRAWS * 0.999


def test_top_k_keeps_the_k_largest_with_ties_to_the_lowest_id() -> None:
    assert set(counts(LOGITS, Sampling(temperature=5.0, top_k=3))) == {1, 3, 7}
    assert set(counts(LOGITS, Sampling(temperature=5.0, top_k=1))) == {1}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.125])
    logits = np.log(probabilities).astype(np.float32)
    assert set(counts(logits, Sampling(top_p=0.49))) == {0}
    assert set(counts(logits, Sampling(top_p=0.51))) == {0, 1}
    assert set(counts(logits, Sampling(top_p=0.76))) == {0, 1, 2}
    assert set(counts(logits, Sampling(top_p=1.0))) == {0, 1, 2, 3}
    found = counts(logits, Sampling(top_p=0.7))
    assert found[0] / DRAWS == pytest.approx(2 / 3, abs=0.012)


def test_depends_on_seed_and_position_and_nothing_else() -> None:
    sampling = Sampling(seed=(1 << 64) - 1)
    assert [sample(LOGITS, sampling, p) for p in range(200)] == [sample(LOGITS, sampling, p) for p in range(200)]
    assert counts(LOGITS, sampling) != counts(LOGITS, Sampling(seed=1))
    high = [sample(LOGITS, Sampling(seed=1 << 40), p) for p in range(200)]
    assert high != [sample(LOGITS, Sampling(seed=0), p) for p in range(200)]
