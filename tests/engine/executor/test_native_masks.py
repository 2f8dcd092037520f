"""The native executor's samples wait for their masks, and for nothing else."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from engine.executor.base import Executor
from engine.executor.native import NativeExecutor
from engine.executor.reference import ReferenceExecutor
from engine.step import Row, Sampling, StepPlan
from tests.engine.executor.native_models import make_native

PROMPT = tuple(range(1, 40))
BLOCKS = tuple(range(8))
FREE = tuple(range(8, 16))


@pytest.fixture(scope="module")
def executor(tiny_path: Path) -> NativeExecutor:
    return make_native(tiny_path)


def only(vocab: int, *tokens: int) -> bytes:
    return sum(1 << token for token in tokens).to_bytes(-(-vocab // 32) * 4, "little")


def run(executor: Executor, sampling: Sampling, masks: list[bytes | None]) -> list[int]:
    """Decodes one token a mask, always one plan ahead, beside a sequence that is free."""
    free = Sampling(0.0)
    rows = [Row(0, 0, PROMPT, BLOCKS, True, sampling), Row(1, 0, PROMPT[:5], FREE, True, free)]
    executor.submit(StepPlan(1, tuple(rows)))
    found = []
    for index, mask in enumerate(masks):
        step, at = index + 2, len(PROMPT) + index
        executor.submit(StepPlan(step, (Row(0, at, (), BLOCKS, True), Row(1, 5 + index, (), FREE, True))))
        executor.allow(0, step - 1, mask)
        result = executor.collect()
        found.append(result.rows[0].tokens[0])
        assert result.rows[1].tokens
    executor.allow(0, len(masks) + 1, None)
    executor.collect()
    return found


def test_samples_are_the_oracles_under_the_same_masks(tiny_path: Path, executor: NativeExecutor) -> None:
    vocab = executor.limits.vocab
    masks = [only(vocab, *range(start, vocab, 7)) for start in range(10)] + [None, only(vocab, vocab - 1)]
    sampling = Sampling(0.0, constrained=True, first=len(PROMPT))
    oracle = ReferenceExecutor(tiny_path, slots=2, blocks=16)
    found = run(executor, sampling, masks)
    assert found == run(oracle, sampling, masks)
    assert [token % 7 for token in found[:10]] == [start % 7 for start in range(10)]
    assert found[-1] == vocab - 1


def test_masks_that_allow_all_change_nothing(executor: NativeExecutor) -> None:
    constrained, free = Sampling(0.7, seed=3, constrained=True), Sampling(0.7, seed=3)
    everything = b"\xff" * (-(-executor.limits.vocab // 32) * 4)
    assert run(executor, constrained, [None] * 6) == run(executor, constrained, [everything] * 6)
    executor.submit(StepPlan(1, (Row(0, 0, PROMPT, BLOCKS, True, free),)))
    first = executor.collect().rows[0].tokens
    assert [*first] == run(executor, constrained, [None] * 6)[:1]


def test_closing_waits_for_no_mask(tiny_path: Path) -> None:
    executor = make_native(tiny_path)
    executor.submit(StepPlan(1, (Row(0, 0, PROMPT, BLOCKS, True, Sampling(constrained=True)),)))
    closing = threading.Thread(target=executor.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


def test_a_mask_that_is_too_short_is_refused(executor: NativeExecutor) -> None:
    with pytest.raises(ValueError, match="a bit a token"):
        executor.allow(0, 1, b"\xff")
