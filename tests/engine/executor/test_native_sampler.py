"""Sampling in C++ against the documented order, which `reference.sample` states in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import _native
from engine.executor.philox import philox4x32, uniform
from engine.executor.reference import sample
from engine.step import Sampling
from tests.engine.executor.native_models import ISAS

VOCAB = 3001
WORD = st.integers(0, (1 << 32) - 1)


def native(logits: npt.NDArray[np.float32], sampling: Sampling, position: int = 0, isa: str = "") -> int | None:
    return _native.sample(isa, logits.astype(np.float32).tobytes(), sampling, position)


@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_philox_is_the_references(counter: tuple[int, int, int, int], key: tuple[int, int]) -> None:
    assert tuple(_native.philox4x32(list(counter), list(key))) == philox4x32(counter, key)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, expected)]
    assert _native.philox4x32(words[0], words[1]) == words[2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("spread", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("temperature", [0.0, 1e-9, 0.3, 1.0, 5.0])
def test_follows_the_documented_order(isa: str, spread: float, temperature: float) -> None:
    random = np.random.default_rng(int(spread * 10))
    seen = set()
    for position, top_p in enumerate((1.0, 0.999, 0.9, 0.5, 0.01)):
        for top_k in (0, 1, 2, 40, VOCAB - 1, VOCAB, VOCAB + 7):
            logits = random.normal(0, spread, VOCAB).astype(np.float32)
            for seed in (0, 1 << 63, 0xDEADBEEF12345678):
                sampling = Sampling(temperature, top_p, top_k, seed)
                found = native(logits, sampling, position, isa)
                assert found == sample(logits, sampling, position), sampling
                seen.add(found == int(logits.argmax()))
    assert (False in seen) == (temperature >= 0.3)


@given(
    logits=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=40),
    temperature=st.sampled_from([0.0, 0.7, 2.0]),
    top_k=st.integers(0, 45),
    seed=st.integers(0, (1 << 64) - 1),
)
def test_ties_go_to_the_lowest_id(logits: list[float], temperature: float, top_k: int, seed: int) -> None:
    sampling = Sampling(temperature, top_k=top_k, seed=seed)
    values = np.array(logits, np.float32)
    assert native(values, sampling) == sample(values, sampling, 0)


def test_top_p_keeps_the_set_that_reaches_it_exactly() -> None:
    logits = np.log(np.array([0.25, 0.5, 0.125, 0.125])).astype(np.float32)
    kept = {p: {native(logits, Sampling(top_p=p, seed=3), at) for at in range(300)} for p in (0.49, 0.51, 0.76, 1.0)}
    assert kept == {0.49: {1}, 0.51: {0, 1}, 0.76: {0, 1, 2}, 1.0: {0, 1, 2, 3}}


def test_every_isa_samples_the_same() -> None:
    logits = np.random.default_rng(5).normal(0, 2, VOCAB).astype(np.float32)
    draws = [[native(logits, Sampling(seed=9), at, isa) for at in range(100)] for isa in ISAS]
    assert all(tokens == draws[0] for tokens in draws)
    assert len(set(draws[0])) > 50


def test_the_uniform_number_picks_the_token_by_inverse_cdf() -> None:
    """Equal logits: the token is the uniform number itself, scaled."""
    logits = np.zeros(1024, np.float32)
    for position in range(200):
        assert native(logits, Sampling(seed=77), position) == int(uniform(77, position) * 1024)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("where", [0, 17, VOCAB - 1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_sample_nothing(isa: str, where: int, value: float) -> None:
    logits = np.zeros(VOCAB, np.float32)
    logits[where] = value
    assert native(logits, Sampling(), isa=isa) is None
    assert native(logits, Sampling(temperature=0.0), isa=isa) is None


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e300])
def test_extreme_temperatures_and_logits(temperature: float) -> None:
    logits = np.array([-3.4e38, 3.4e38, 0.0, 3.3e38], np.float32)
    for position in range(20):
        found = native(logits, Sampling(temperature), position)
        assert found == (1 if temperature < 1 else sample(logits, Sampling(temperature), position))


def test_frequencies_are_the_softmax() -> None:
    logits = np.array([1.0, 3.0, -2.0, 3.0, 0.5, 2.0, 2.5], np.float32)
    expected = np.exp(logits.astype(np.float64) / 0.8)
    expected *= 10_000 / expected.sum()
    found = np.zeros(len(logits))
    for position in range(10_000):
        token = native(logits, Sampling(0.8, seed=4), position)
        assert token is not None
        found[token] += 1
    assert ((found - expected) ** 2 / expected).sum() < 22.5  # 6 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_k": -1}, "top_k must be an integer"),
        ({"seed": 1 << 64}, "seed must be an integer"),
        ({"seed": -1}, "seed must be an integer"),
        ({"temperature": "hot"}, "temperature must be a number"),
        ({"stop_ids": tuple(range(65))}, "65 stop_ids; the limit is 64"),
        ({"stop_ids": [1]}, "stop_ids must be a tuple"),
    ],
)
def test_senseless_sampling_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native(np.zeros(4, np.float32), replace(Sampling(), **change))  # type: ignore[arg-type]
