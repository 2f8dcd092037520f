"""Steps one at a time, as the checks want them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import numpy.typing as npt

from engine.executor.base import Executor
from engine.step import Row, RowResult, Sampling, StepPlan

Floats = npt.NDArray[np.float32]


class Runner:
    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._steps = count(1)

    def step(self, *rows: Row) -> dict[int, RowResult]:
        """By slot."""
        self.executor.submit(StepPlan(next(self._steps), rows))
        return {row.slot: row for row in self.executor.collect().rows}

    def logits(self, slot: int) -> Floats:
        return np.array(self.executor.logits(slot), np.float32)

    def text_logits(self, tokens: Sequence[int], table: tuple[int, ...]) -> Floats:
        """After every one of the tokens, [n, vocab], one a step, in slot 0."""
        found = []
        for at, token in enumerate(tokens):
            self.step(Row(0, at, (token,), table, True, Sampling(0.0) if at == 0 else None))
            found.append(self.logits(0))
        return np.stack(found)
