"""Sampling in C++ against the documented order, which `reference.sample` states in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import _native
from engine.executor.philox import philox4x32, uniform
from engine.executor.sampling import logprobs, sample
from engine.step import Logprobs, Sampling
from tests.engine.executor.native_models import ISAS

VOCAB = 3001
WORD = st.integers(0, (1 << 32) - 1)


def native(
    logits: npt.NDArray[np.float32],
    sampling: Sampling,
    position: int = 0,
    isa: str = "",
    history: tuple[int, ...] = (),
    mask: bytes | None = None,
) -> int | None:
    found = _native.sample(isa, logits.astype(np.float32).tobytes(), sampling, position, history, mask)
    return None if found is None else found[0]


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
        ({"logprobs": 21}, "logprobs must be an integer in \\[0, 20\\]"),
        ({"bias": ((1, 0.0),) * 301}, "301 biases; the limit is 300"),
        ({"bias": ((1,),)}, "bias must be a tuple of \\(id, number\\)"),
        ({"bias": ((-1, 0.0),)}, "bias id must be an integer"),
        ({"bias": ((4, 0.0),)}, "an id is outside the vocabulary"),
        ({"stop_ids": (4,), "min_tokens": 1}, "an id is outside the vocabulary"),
        ({"min_tokens": -1}, "min_tokens must be an integer"),
        ({"first": 1 << 32}, "first must be an integer"),
    ],
)
def test_senseless_sampling_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native(np.zeros(4, np.float32), replace(Sampling(), **change))  # type: ignore[arg-type]


IDS = st.integers(0, 39)


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    return Sampling(
        draw(st.sampled_from([0.0, 0.3, 1.0, 2.0])),
        draw(st.sampled_from([1.0, 0.9, 0.4])),
        draw(st.sampled_from([0, 1, 5, 40])),
        draw(st.integers(0, (1 << 64) - 1)),
        tuple(draw(st.lists(IDS, max_size=5))),
        draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])),
        draw(st.sampled_from([1.0, 0.5, 1.3])),
        draw(st.sampled_from([0.0, -1.5, 0.7])),
        draw(st.sampled_from([0.0, 1.0, -2.0])),
        tuple(draw(st.lists(st.tuples(IDS, st.floats(-100, 100, width=32)), max_size=6))),
        first=draw(st.integers(0, 30)),
        min_tokens=draw(st.integers(0, 12)),
    )


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=40, max_size=40),
    sampling=samplings(),
    history=st.lists(IDS, max_size=40),
    isa=st.sampled_from(ISAS),
)
def test_every_field_together_is_the_models(
    logits: list[float], sampling: Sampling, history: list[int], isa: str
) -> None:
    values, known = np.array(logits, np.float32), tuple(history)
    assert native(values, sampling, len(known), isa, known) == sample(values, sampling, len(known), known)


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=40, max_size=40),
    sampling=samplings(),
    history=st.lists(IDS, max_size=40),
    allowed=st.sets(IDS, min_size=1),
    isa=st.sampled_from(ISAS),
)
def test_only_allowed_tokens_are_sampled_and_as_the_model_does_it(
    logits: list[float], sampling: Sampling, history: list[int], allowed: set[int], isa: str
) -> None:
    sampling = replace(sampling, min_tokens=0, first=min(sampling.first, len(history)))
    values, known = np.array(logits, np.float32), tuple(history)
    mask = sum(1 << token for token in allowed).to_bytes(8, "little")
    found = native(values, sampling, len(known), isa, known, mask)
    assert found == sample(values, sampling, len(known), known, mask)
    assert found in allowed


def test_a_mask_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="a bit a token"):
        native(np.zeros(40, np.float32), Sampling(), mask=b"\xff" * 4)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("penalty", [{"repetition": 1.2}, {"frequency": 0.8}, {"presence": 1.5}, {}])
def test_penalties_and_min_p_over_a_whole_vocabulary_are_the_models(isa: str, penalty: dict[str, Any]) -> None:
    random = np.random.default_rng(11)
    for position, min_p in enumerate((0.0, 1e-6, 0.01, 0.2)):
        logits = random.normal(0, 3, VOCAB).astype(np.float32)
        history = tuple(int(token) for token in random.integers(0, VOCAB, 900))
        sampling = Sampling(0.9, 0.97, 50, 7, min_p=min_p, first=400, bias=((5, 4.0), (2999, -9.0)), **penalty)
        assert native(logits, sampling, position, isa, history) == sample(logits, sampling, position, history)


def test_penalties_and_bias_on_the_largest_floats_stay_finite() -> None:
    logits = np.array([3.4e38, -3.4e38, 3.3e38, 0.0], np.float32)
    sampling = Sampling(0.0, repetition=0.01, frequency=-2.0, bias=((1, -3e38), (0, 3e38)))
    assert native(logits, sampling, 4, history=(0, 1, 2, 3)) == sample(logits, sampling, 4, (0, 1, 2, 3)) == 0


@given(
    logits=st.lists(st.sampled_from([-30.0, -1.0, 0.0, 0.5, 3.0, 80.0]) | st.floats(-9, 9, width=32), min_size=1),
    top=st.integers(0, 20),
    isa=st.sampled_from(ISAS),
)
def test_logprobs_are_of_the_models_own_distribution(logits: list[float], top: int, isa: str) -> None:
    values = np.array(logits, np.float32)
    sampling = Sampling(2.0, 0.5, seed=3, logprobs=top, repetition=1.5, bias=((0, 7.0),))
    found = _native.sample(isa, values.tobytes(), sampling, 1, (0,))
    assert found is not None
    assert found[1] is not None
    told, expected = Logprobs(*found[1]), logprobs(values, found[0], top)
    assert [token for token, _ in told.top] == [token for token, _ in expected.top]
    assert told.sampled == pytest.approx(expected.sampled, abs=1e-12, rel=1e-12)
    assert [value for _, value in told.top] == pytest.approx([value for _, value in expected.top], abs=1e-12, rel=1e-12)


def test_nothing_is_told_unless_asked() -> None:
    assert _native.sample("", np.zeros(4, np.float32).tobytes(), Sampling(0.0), 0) == (0, None)
