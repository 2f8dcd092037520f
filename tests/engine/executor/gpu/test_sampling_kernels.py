"""The sampler draws what the numpy model draws (engine/executor/sampling.py), and tells what it tells."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.executor.gpu import launch, state
from engine.executor.gpu.tiles import INTERPRETED
from engine.executor.kernels import slot as field
from engine.executor.sampling import logprobs, sample
from engine.step import Logprobs, Sampling
from tests.engine.gguf_files import TINY

SLOTS = 4
Outcome = tuple[int, int, Logprobs | None]
Row = tuple[torch.Tensor, int, bytes | None]


class Sampler:
    """Rows through the kernels, NaN and nonsense in memory that they must not read."""

    def __init__(self, vocab: int) -> None:
        self.shape = launch.Shape(replace(TINY, vocab=vocab), 256, SLOTS, INTERPRETED)
        self.state = launch.Slots(
            torch.full((SLOTS, state.INTS), -7, dtype=torch.int32),
            torch.full((SLOTS, state.REALS), math.nan, dtype=torch.float64),
            torch.full((SLOTS, vocab), -7, dtype=torch.int32),
            torch.zeros((SLOTS, self.shape.words), dtype=torch.int32),
            torch.full((SLOTS, vocab), math.nan),
        )

    def open(self, slot: int, sampling: Sampling, history: list[int]) -> None:
        state.fill(sampling, self.state.ints[slot].numpy(), self.state.reals[slot].numpy())
        if sampling.penalises:
            state.count(history, sampling.first, self.state.seen[slot].numpy())

    def run(self, rows: dict[int, Row]) -> dict[int, Outcome]:
        """slot -> (logits, position of the token to sample, mask)"""
        places = [*rows, -1]
        for slot, (_, _, mask) in rows.items():
            if mask is not None:
                self.state.allowed[slot] = torch.frombuffer(bytearray(mask), dtype=torch.int32)
        sampled = launch.Sampled(
            torch.arange(len(places), dtype=torch.int32).flip(0).contiguous(),
            torch.tensor(places, dtype=torch.int32),
            torch.tensor([*(mask is not None for _, _, mask in rows.values()), 0], dtype=torch.int32),
        )
        positions = torch.tensor([*(at - 1 for _, at, _ in rows.values()), 0], dtype=torch.int32).flip(0).contiguous()
        logits = torch.stack([*(values for values, _, _ in rows.values()), torch.full((self.shape.config.vocab,), 0.0)])
        adjusted, choice = torch.full_like(logits, math.nan), torch.full((len(places),), -9, dtype=torch.int32)
        launch.adjust(self.shape, logits, sampled, positions, self.state, adjusted, choice)
        ordered, order = torch.sort(adjusted, dim=-1, descending=True, stable=True)
        launch.draw(self.shape, ordered, order, sampled, positions, self.state, choice)
        results = torch.full((len(places), 2), -9, dtype=torch.int32)
        launch.commit(self.shape, choice, sampled, self.state, results)
        ids = torch.full((len(places), state.TOLD), -9, dtype=torch.int32)
        told = torch.full((len(places), state.TOLD + 1), math.nan, dtype=torch.float64)
        launch.tell(self.shape, logits, choice, sampled, self.state, ids, told)
        assert results[-1].tolist() == [-9, -9]
        found: dict[int, Outcome] = {}
        for row, slot in enumerate(rows):
            token, finish = results[row].tolist()
            wanted = max(0, int(self.state.ints[slot, field.LOGPROBS.value]))
            asked = int(self.state.ints[slot, field.LOGPROBS.value]) >= 0
            pairs = tuple(zip(ids[row, :wanted].tolist(), told[row, 1 : wanted + 1].tolist(), strict=True))
            found[slot] = (token, finish, Logprobs(float(told[row, 0]), pairs) if asked and token >= 0 else None)
        return found


@st.composite
def samplings(draw: st.DrawFn, vocab: int) -> Sampling:
    ids = st.integers(0, vocab - 1)
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.01])),
        top_k=draw(st.sampled_from([0, 1, 5, 1000])),
        seed=draw(st.integers(0, (1 << 64) - 1)),
        stop_ids=tuple(draw(st.sets(ids, max_size=3))),
        min_p=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        repetition=draw(st.sampled_from([1.0, 1.3, 0.5])),
        frequency=draw(st.sampled_from([0.0, 0.4, -1.5])),
        presence=draw(st.sampled_from([0.0, 0.7])),
        bias=tuple(draw(st.dictionaries(ids, st.sampled_from([-100.0, -1.5, 3.25, 100.0]), max_size=4)).items()),
        first=6,
        min_tokens=draw(st.sampled_from([0, 3])),
        logprobs=draw(st.sampled_from([None, 0, 1, 5])),
    )


@settings(max_examples=6, deadline=None)
@given(st.sampled_from([33, 257, 5000]), st.integers(0, 1 << 30), st.data())
def test_rows_sample_what_the_numpy_model_samples(vocab: int, seed: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    sampler = Sampler(vocab)
    rows, expected = {}, {}
    for slot in data.draw(st.sets(st.integers(0, SLOTS - 1), min_size=1)):
        sampling = data.draw(samplings(vocab))
        history = [int(token) for token in random.integers(0, vocab, 6 + data.draw(st.integers(0, 4)))]
        logits = (random.normal(0, 3, vocab) * 4).round().astype(np.float32) / np.float32(
            4
        )  # of quarters: there are equals
        mask = random.bytes(-(-vocab // 32) * 4) if data.draw(st.booleans()) else None
        sampler.open(slot, sampling, history)
        rows[slot] = (torch.from_numpy(logits), len(history), mask)
        token = sample(logits, sampling, len(history), history, mask)
        told = None if sampling.logprobs is None else logprobs(logits, token, sampling.logprobs)
        expected[slot] = (token, int(token in sampling.stop_ids), told)
    found = sampler.run(rows)
    for slot, (token, finish, told) in expected.items():
        assert found[slot][:2] == (token, finish)
        if told is None:
            assert found[slot][2] is None
        else:
            mine = found[slot][2]
            assert mine is not None
            assert [pair[0] for pair in mine.top] == [pair[0] for pair in told.top]
            values, wanted = ((one.sampled, *(p for _, p in one.top)) for one in (mine, told))
            np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(sampler.state.logits[slot], rows[slot][0], rtol=0, atol=0)


def test_penalties_count_what_was_sampled_since() -> None:
    sampler = Sampler(64)
    sampling = Sampling(0.8, seed=5, repetition=1.1, frequency=0.6, presence=0.3, first=2)
    history = [3, 9]
    logits = np.zeros(64, np.float32)
    logits[:3] = 30.0
    sampler.open(1, sampling, history)
    for _ in range(8):
        token = sample(logits, sampling, len(history), history)
        assert sampler.run({1: (torch.from_numpy(logits), len(history), None)})[1][0] == token
        history.append(token)
    assert len(set(history)) < len(history)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_ends_its_slot_alone(value: float) -> None:
    sampler = Sampler(64)
    for slot in (0, 1):
        sampler.open(slot, Sampling(0.0), [])
    broken, sound = torch.arange(64.0), torch.arange(64.0)
    broken[7] = value
    rows: dict[int, Row] = {0: (broken, 1, None), 1: (sound, 1, None)}
    assert sampler.run(rows) == {0: (-1, field.ERROR.value, None), 1: (63, 0, None)}
    assert sampler.run(rows) == {0: (-1, 0, None), 1: (63, 0, None)}


def test_a_slot_that_stopped_samples_nothing_until_it_is_opened_again() -> None:
    sampler = Sampler(64)
    row: dict[int, Row] = {2: (torch.arange(64.0), 1, None)}
    sampler.open(2, Sampling(0.0, stop_ids=(5, 63)), [])
    assert sampler.run(row)[2][:2] == (63, field.STOP.value)
    assert sampler.run(row)[2][:2] == (-1, 0)
    sampler.open(2, Sampling(0.0), [])
    assert sampler.run(row)[2][:2] == (63, 0)


@pytest.mark.parametrize(
    ("sampling", "part"),
    [
        (Sampling(stop_ids=tuple(range(65))), "65 stop ids"),
        (Sampling(bias=tuple((i, 1.0) for i in range(513))), "513 biased"),
        (Sampling(bias=((1, 1.0), (1, 2.0))), "twice"),
        (Sampling(logprobs=21), "21 log-probabilities"),
        (Sampling(stop_ids=(1000,)), "outside the vocabulary of 1000"),
        (Sampling(bias=((-1, 1.0),)), "outside the vocabulary of 1000"),
    ],
)
def test_what_a_slot_cannot_hold_is_named(sampling: Sampling, part: str) -> None:
    problem = state.check(sampling, 1000)
    assert problem is not None
    assert part in problem
    assert state.check(Sampling(stop_ids=(999,), bias=((0, 1.0),), logprobs=20), 1000) is None
