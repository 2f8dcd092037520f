"""What passes between scheduler and executor: a plan of one step, and its result.

Both are plain values that nobody changes, so that the scheduler can be tested without an executor and an executor
without a scheduler. Rows and their results are not frozen by Python: that would make each four times as dear, and they
are most of what a step costs its thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

BLOCK_TOKENS = 16
"""Tokens in one KV block. A block table entry covers positions [16*i, 16*i + 16)."""


class Finish(StrEnum):
    """Why a sequence ended, in the words of the OpenAI `finish_reason` where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence samples. Lives in the executor's slot from the first row that names it.

    Order: logits / temperature, the top_k largest (ties: lowest id), softmax, the smallest descending set whose
    probability reaches top_p, inverse CDF over that descending order. `temperature == 0` is argmax, ties to the
    lowest id. The uniform number for the token at absolute position p is Philox4x32-10 (Salmon et al., SC'11) with
    key = seed (64 bit, low word first) and counter = (p, 0, 0, 0): its first word >> 8, times 2**-24. It depends on
    nothing else, so a sequence samples the same alone, in a batch, and after it was moved.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    """Ids that end the sequence when sampled (end of text, stop_token_ids); empty when they are to be ignored."""


@dataclass(slots=True)
class Row:
    """The tokens of one sequence in one step.

    `tokens` are the ids to run at positions [start, start + len(tokens)). Empty means a decode row: run the token
    that this slot sampled last, at position `start`; the executor knows it, the scheduler need not.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    """Physical block ids covering positions [0, start + count)."""
    sample: bool
    """Sample the next token after this row's last position."""
    opens: Sampling | None = None
    """Set on the first row of a sequence: the slot is reset to this sampling state before the row runs."""

    @property
    def count(self) -> int:
        return len(self.tokens) or 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    step: int
    """The step counter, growing by one with each plan."""
    rows: tuple[Row, ...]


@dataclass(slots=True)
class RowResult:
    slot: int
    tokens: tuple[int, ...] = ()
    """Sampled ids, in order. Empty for a prefill row without `sample` and for a row of a slot that had finished."""
    finish: Finish | None = None
    """STOP: the last token is one of the slot's stop_ids. ERROR: its logits were not finite; it sampled nothing."""


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    rows: tuple[RowResult, ...] = field(default=())
    """In the order of the plan's rows."""
    started: float = 0.0
    """Executor's monotonic clock in seconds (CLOCK_MONOTONIC, as `time.monotonic`), when the first kernel began."""
    ended: float = 0.0
