"""The first steps of an executor.

Until they have produced a token, nothing proves that the node can; and the first user would wait for pages, threads and
caches that they touch for the first time.
"""

from __future__ import annotations

from engine.executor.base import Executor
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan

PROMPT = 2
"""Tokens; they are ids like any others, since the tokenizer need not be there yet. Two touch all weights as eight do,
in three quarters of the time, which the interpreter's threads have then."""


class WarmupError(RuntimeError):
    """The executor ran, but no token came out."""


class WarmUp:
    """A greedy and a sampled sequence side by side, through prefill and one decode step.

    Begun by the constructor, so that it runs while the rest of a start goes on; the executor belongs to it until
    `finish` has returned.
    """

    def __init__(self, executor: Executor) -> None:
        limits = executor.limits
        room = min(limits.context, BLOCK_TOKENS)
        count = max(1, min(PROMPT, room - 1, limits.step_tokens // 2))
        prompt = tuple(token % limits.vocab for token in range(count))
        self._slots = range(min(2, limits.slots, limits.blocks, limits.step_tokens))
        self._executor = executor
        executor.submit(StepPlan(1, tuple(self._row(slot, prompt, 0) for slot in self._slots)))
        executor.submit(StepPlan(2, tuple(self._row(slot, (), count) for slot in self._slots)))

    def finish(self) -> None:
        """Waits for its steps. Raises WarmupError."""
        for _ in range(2):
            result = self._executor.collect()
            if missing := [row.slot for row in result.rows if not row.tokens]:
                raise WarmupError(f"the warm-up failed: step {result.step} sampled nothing in slots {missing}")

    def _row(self, slot: int, tokens: tuple[int, ...], start: int) -> Row:
        opens = Sampling(temperature=float(slot), top_p=0.95) if tokens else None
        return Row(slot, start, tokens, (slot,), sample=True, opens=opens)
