from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.executor.base import Limits
from engine.executor.reference import ReferenceExecutor
from engine.model.gguf import GgufError
from engine.step import Finish, Row, Sampling
from tests.engine.executor.driver import GREEDY, Driver, blocks_for, chunks

PROMPT = [5, 17, 99, 3, 3, 120, 64, 2, 41, 77, 8, 15, 16, 23, 42, 4, 11, 90, 31, 7]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=0xDEADBEEF12345678)
SCATTERED = (13, 2, 30, 7)
ROUNDING = 2e-5
"""torch sums in another order for another shape; the tiny model's logits are about 1."""


@pytest.fixture(scope="module")
def executor(tiny_path: Path) -> Iterator[ReferenceExecutor]:
    executor = ReferenceExecutor(tiny_path, slots=8, blocks=64, step_tokens=64)
    yield executor
    executor.close()


@pytest.fixture
def drive(executor: ReferenceExecutor) -> Driver:
    return Driver(executor)


def test_states_its_limits_and_what_decides_its_bits(executor: ReferenceExecutor, tiny_path: Path) -> None:
    assert executor.limits == Limits(slots=8, blocks=64, step_tokens=64, context=256, vocab=128)
    again = ReferenceExecutor(tiny_path, slots=1, blocks=1, context=9)
    assert again.numerics == executor.numerics
    assert again.limits.context == 9


def test_paged_equals_contiguous(drive: Driver) -> None:
    contiguous = drive.generate(PROMPT, 30, blocks=blocks_for(50))
    expected = drive.logits()
    assert drive.generate(PROMPT, 30, blocks=SCATTERED) == contiguous
    np.testing.assert_allclose(drive.logits(), expected, atol=ROUNDING)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17])
def test_a_prompt_in_chunks_equals_the_prompt_at_once(drive: Driver, chunk: int) -> None:
    drive.prefill(PROMPT, blocks=SCATTERED)
    expected = drive.logits()
    drive.prefill(PROMPT, blocks=(1, 0), slot=1, chunk=chunk)
    np.testing.assert_allclose(drive.logits(1), expected, atol=ROUNDING)


def test_decode_rows_equal_prefill(drive: Driver) -> None:
    sampled = drive.generate(PROMPT, 12, blocks=SCATTERED)
    decoded = drive.logits()
    drive.prefill(PROMPT + sampled[:-1], blocks=(20, 21, 22), slot=1)
    np.testing.assert_allclose(drive.logits(1), decoded, atol=ROUNDING)


def test_a_row_is_the_same_alone_and_beside_others(drive: Driver) -> None:
    drive.prefill(PROMPT, blocks=(0, 1), sampling=SAMPLED)
    expected = drive.logits()
    others = [
        Row(slot, 0, tuple(PROMPT[slot : slot + slot * 2]), (10 + slot, 20 + slot), slot % 2 == 0, GREEDY)
        for slot in (1, 2, 3)
    ]
    mine = next(chunks(PROMPT, 4, (30, 31), SAMPLED, 99))
    results = drive.step(others[0], others[1], mine, others[2])
    assert [(row.slot, len(row.tokens)) for row in results] == [(1, 0), (2, 1), (4, 1), (3, 0)]
    np.testing.assert_allclose(drive.logits(4), expected, atol=ROUNDING)


def test_sequences_share_blocks_that_neither_writes(drive: Driver) -> None:
    drive.prefill(PROMPT, blocks=(0, 1))
    expected = drive.logits()
    drive.step(Row(1, 16, tuple(PROMPT[16:]), (0, 9), True, GREEDY))
    np.testing.assert_allclose(drive.logits(1), expected, atol=ROUNDING)
    drive.step(Row(0, len(PROMPT), (), (0, 1), True))


def test_a_decode_row_takes_the_token_of_a_step_not_yet_collected(drive: Driver, executor: ReferenceExecutor) -> None:
    expected = drive.generate(PROMPT, 2, blocks=(0, 1))
    drive.submit(Row(1, 0, tuple(PROMPT), (2, 3), True, GREEDY))
    drive.submit(Row(1, len(PROMPT), (), (2, 3), True))
    with pytest.raises(RuntimeError, match="2 plans are submitted already"):
        drive.submit(Row(1, len(PROMPT) + 1, (), (2, 3), True))
    first, second = executor.collect(), executor.collect()
    assert [*first.rows[0].tokens, *second.rows[0].tokens] == expected
    assert second.step == first.step + 1
    assert first.started <= first.ended <= second.started <= second.ended
    with pytest.raises(RuntimeError, match="no step is submitted"):
        executor.collect()


def test_a_stop_token_ends_the_slot_until_it_is_opened_again(drive: Driver) -> None:
    tokens = drive.generate(PROMPT, 4, blocks=(0, 1))
    stopping = replace(GREEDY, stop_ids=(tokens[2], 127))
    assert tokens[2] not in tokens[:2]
    drive.prefill(PROMPT, blocks=(0, 1), sampling=stopping)
    results = [drive.step(Row(0, len(PROMPT) + i, (), (0, 1), True))[0] for i in range(4)]
    assert [row.tokens for row in results] == [(tokens[1],), (tokens[2],), (), ()]
    assert [row.finish for row in results] == [None, Finish.STOP, None, None]
    assert drive.prefill(PROMPT, blocks=(0, 1)) == (tokens[0],)


def test_logits_that_are_not_finite_end_one_sequence_only(tiny_path: Path) -> None:
    drive = Driver(ReferenceExecutor(tiny_path, slots=2, blocks=8))
    unwritten = Row(0, 16, (1, 2), (0, 1), True, GREEDY)
    broken, sound = drive.step(unwritten, Row(1, 0, tuple(PROMPT), (2, 3), True, GREEDY))
    assert (broken.tokens, broken.finish) == ((), Finish.ERROR)
    assert (len(sound.tokens), sound.finish) == (1, None)
    assert drive.step(Row(0, 18, (), (0, 1), True))[0].tokens == ()


def test_seeded_sampling_is_the_same_in_another_slot_and_batch(drive: Driver) -> None:
    expected = drive.generate(PROMPT, 24, blocks=SCATTERED, sampling=SAMPLED)
    assert drive.generate(PROMPT, 24, blocks=(40, 41, 42), slot=5, sampling=SAMPLED) == expected
    assert drive.generate(PROMPT, 24, blocks=SCATTERED, sampling=replace(SAMPLED, seed=1)) != expected
    moved = drive.prefill(PROMPT + expected[:10], blocks=(50, 51), slot=6, sampling=SAMPLED)
    assert moved == (expected[10],)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"slot": 8}, "there are 8 slots"),
        ({"slot": -1}, "there are 8 slots"),
        ({"start": -1}, "positions -1 to 1"),
        ({"start": 255}, "positions 255 to 257 of a context of 256"),
        ({"start": 15}, "1 blocks do not cover 17 positions"),
        ({"blocks": ()}, "0 blocks do not cover 2 positions"),
        ({"blocks": (64,)}, "outside the pool of 64"),
        ({"blocks": (-1,)}, "outside the pool of 64"),
        ({"tokens": (128,)}, "outside the vocabulary of 128"),
        ({"tokens": (-1,)}, "outside the vocabulary of 128"),
        ({"tokens": ()}, "a decode row needs a token"),
        ({"opens": None, "slot": 7}, "must open its slot"),
        ({"tokens": (1,) * 65, "blocks": tuple(range(5))}, "more than 64 tokens"),
    ],
)
def test_a_plan_beyond_the_limits_is_refused_and_changes_nothing(
    drive: Driver, executor: ReferenceExecutor, change: dict[str, Any], part: str
) -> None:
    drive.prefill(PROMPT, blocks=(0, 1))
    expected = drive.logits()
    row = Row(0, 0, (1, 2), (3,), True, GREEDY)
    with pytest.raises(ValueError, match=part):
        drive.submit(replace(row, **change))
    np.testing.assert_array_equal(drive.logits(), expected)
    with pytest.raises(RuntimeError):
        executor.collect()


def test_two_rows_of_one_slot_are_refused(drive: Driver) -> None:
    row = Row(0, 0, (1, 2), (3,), True, GREEDY)
    with pytest.raises(ValueError, match="a slot has two rows"):
        drive.submit(row, row)


def test_a_block_written_twice_is_refused(drive: Driver) -> None:
    one, other = Row(0, 0, (1, 2), (3,), True, GREEDY), Row(1, 0, (1, 2), (3,), True, GREEDY)
    with pytest.raises(ValueError, match="a block is written twice"):
        drive.submit(one, other)
    with pytest.raises(ValueError, match="a block is written twice"):
        drive.submit(Row(0, 0, (1,) * 20, (3, 3), True, GREEDY))


def test_a_decode_row_of_a_slot_that_sampled_nothing_is_refused(drive: Driver) -> None:
    drive.step(Row(2, 0, (1, 2), (3,), False, GREEDY))
    with pytest.raises(ValueError, match="a decode row needs a token"):
        drive.submit(Row(2, 2, (), (3,), True))
    with pytest.raises(ValueError, match="slot 2 has sampled nothing"):
        drive.executor.logits(2)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(GgufError):
        ReferenceExecutor(path, slots=1, blocks=1)
