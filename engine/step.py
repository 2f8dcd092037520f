"""What passes between scheduler and executor: a plan of one step, and its result.

Both are plain values that nobody changes, so that the scheduler can be tested without an executor and an executor
without a scheduler. Rows and their results are not frozen by Python: that would make each four times as dear, and they
are most of what a step costs its thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

BLOCK_TOKENS = 16
"""Tokens in one KV block. A block table entry covers positions [16*i, 16*i + 16)."""


class Finish(StrEnum):
    """Why a sequence ended, in the words of the OpenAI `finish_reason` where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    RULES = "rules"
    """What limits its tokens is too much work to go on with."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one sequence samples. Lives in the executor's slot from the first row that names it.

    In this order, which is vLLM's (docs/sampling.md): bias; the penalties on every token seen before; stop_ids held
    back during min_tokens; tokens that are not allowed left out; then, unless temperature is 0, which is argmax with
    ties to the lowest id: logits / temperature, min_p, the top_k largest (ties: lowest id), softmax, the smallest
    descending set whose probability reaches top_p, inverse CDF over that descending order. Bias and penalties are
    float32 operations, each rounded once.

    The uniform number for the token at absolute position p is Philox4x32-10 (Salmon et al., SC'11) with key = seed
    (64 bit, low word first) and counter = (p, 0, 0, 0): its first word >> 8, times 2**-24. So a sequence samples the
    same alone, in a batch, and after it was moved.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    seed: int = 0
    stop_ids: tuple[int, ...] = ()
    """Ids that end the sequence when sampled (end of text, stop_token_ids); empty when they are to be ignored."""
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest are left out."""
    repetition: float = 1.0
    """Positive logits of tokens in the prompt or sampled before are divided by it, others multiplied."""
    frequency: float = 0.0
    """Taken off a logit for each time that its token was sampled before."""
    presence: float = 0.0
    """Taken off the logit of a token that was sampled before."""
    bias: tuple[tuple[int, float], ...] = ()
    """(id, what is added to its logit)."""
    first: int = 0
    """Position of the first sampled token: how long the prompt is, also where tokens behind it are known already."""
    min_tokens: int = 0
    """Tokens that are sampled before a stop id may be."""
    constrained: bool = False
    """Each sample waits for `Executor.allow`: only tokens named there can be sampled."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told of beside the sampled one; None: nothing is told."""

    @property
    def penalises(self) -> bool:
        """Whether the tokens before matter."""
        return self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0


class Logprobs(NamedTuple):
    """Natural logarithms of the model's own probabilities: before bias, penalties and temperature."""

    sampled: float
    """Of the token that was sampled."""
    top: tuple[tuple[int, float], ...]
    """(id, its own) of the likeliest, in descending order, ties by id."""


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
    """Set on the first row of a sequence: the slot is reset to this sampling state before the row runs. Where it
    penalises also on one that brings forced tokens, which its history counts."""
    history: tuple[int, ...] = ()
    """With an `opens` that penalises: all tokens known, of this row, before and behind it. Later samples are added."""
    forced: bool = False
    """Its tokens are an answer's, not a prompt's: they were forced. Nothing to the executor."""

    @property
    def count(self) -> int:
        return len(self.tokens) or 1


class StepPlan(NamedTuple):
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
    logprobs: tuple[Logprobs, ...] = ()
    """One for each of `tokens`, where the slot asked for them."""


class StepResult(NamedTuple):
    step: int
    rows: tuple[RowResult, ...] = ()
    """In the order of the plan's rows."""
    started: float = 0.0
    """Executor's monotonic clock in seconds (CLOCK_MONOTONIC, as `time.monotonic`), when the first kernel began."""
    ended: float = 0.0
