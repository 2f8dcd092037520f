"""Steps one at a time, as the checks want them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from engine.executor.base import Executor
from engine.step import Logprobs, Row, RowResult, Sampling, StepPlan

Floats = npt.NDArray[np.float32]


class Runner:
    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._steps = count(1)

    def step(self, *rows: Row) -> dict[int, RowResult]:
        """By slot."""
        self.executor.submit(StepPlan(next(self._steps), rows))
        return {row.slot: row for row in self.executor.collect().rows}

    def constrained(self, row: Row, mask: bytes) -> tuple[tuple[int, ...], Logprobs]:
        """One row alone, in a slot that asks for log-probabilities: its token, and what is told of it."""
        step = next(self._steps)
        self.executor.submit(StepPlan(step, (row,)))
        self.executor.allow(row.slot, step, mask)
        found = self.executor.collect().rows[0]
        return found.tokens, found.logprobs[0]

    def logits(self, slot: int) -> Floats:
        return np.array(self.executor.logits(slot), np.float32)

    def text_logits(self, tokens: Sequence[int], table: tuple[int, ...]) -> Floats:
        """After every one of the tokens, [n, vocab], one a step, in slot 0."""
        found = []
        for at, token in enumerate(tokens):
            self.step(Row(0, at, (token,), table, True, Sampling(0.0) if at == 0 else None))
            found.append(self.logits(0))
        return np.stack(found)
