"""Drives an executor as a scheduler would, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from engine.executor.base import Executor
from engine.step import BLOCK_TOKENS, Row, RowResult, Sampling, StepPlan

GREEDY = Sampling(temperature=0.0)


class Driver:
    """One step at a time, with step counters that grow."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._steps = count(1)

    def submit(self, *rows: Row) -> None:
        self.executor.submit(StepPlan(next(self._steps), rows))

    def step(self, *rows: Row) -> tuple[RowResult, ...]:
        self.submit(*rows)
        return self.executor.collect().rows

    def logits(self, slot: int = 0) -> npt.NDArray[np.float32]:
        return np.array(self.executor.logits(slot), np.float32)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        blocks: tuple[int, ...],
        slot: int = 0,
        sampling: Sampling = GREEDY,
        chunk: int | None = None,
    ) -> tuple[int, ...]:
        """Runs a prompt in chunks; the tokens sampled after its end."""
        sampled: tuple[int, ...] = ()
        for row in chunks(tokens, slot, blocks, sampling, chunk or len(tokens)):
            sampled = self.step(row)[0].tokens
        return sampled

    def generate(
        self,
        tokens: Sequence[int],
        amount: int,
        *,
        blocks: tuple[int, ...],
        slot: int = 0,
        sampling: Sampling = GREEDY,
    ) -> list[int]:
        found = list(self.prefill(tokens, blocks=blocks, slot=slot, sampling=sampling))
        for position in range(len(tokens), len(tokens) + amount - 1):
            found += self.step(Row(slot, position, (), blocks, True))[0].tokens
        return found


def chunks(tokens: Sequence[int], slot: int, blocks: tuple[int, ...], sampling: Sampling, size: int) -> Iterator[Row]:
    """A prompt's rows; the first opens the slot, the last samples."""
    for start in range(0, len(tokens), size):
        part = tuple(tokens[start : start + size])
        last = start + size >= len(tokens)
        yield Row(slot, start, part, blocks, last, sampling if start == 0 else None)


def blocks_for(positions: int, first: int = 0) -> tuple[int, ...]:
    return tuple(range(first, first - (-positions // BLOCK_TOKENS)))
