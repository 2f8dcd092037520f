"""What a plan must be for an executor that was built with certain limits, and the form of its result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from engine.executor.base import Limits
from engine.step import BLOCK_TOKENS, Row, RowResult, StepPlan, StepResult


def check(plan: StepPlan, limits: Limits, opened: Container[int], samples: Callable[[int], bool]) -> None:
    """Raises ValueError naming what breaks the contract.

    opened: the slots that a sequence has opened. samples: whether a plan that was submitted samples in a slot.
    """
    if sum(row.count for row in plan.rows) > limits.step_tokens:
        raise ValueError(f"step {plan.step}: more than {limits.step_tokens} tokens")
    if len({row.slot for row in plan.rows}) < len(plan.rows):
        raise ValueError(f"step {plan.step}: a slot has two rows")
    for row in plan.rows:
        known = row.slot in opened
        if problem := _problem(row, limits, known, known and samples(row.slot)):
            raise ValueError(f"step {plan.step}, slot {row.slot}: {problem}")
    written = [block for row in plan.rows for block in _written(row)]
    if len(set(written)) < len(written):
        raise ValueError(f"step {plan.step}: a block is written twice")


def check_depth(submitted: int, depth: int) -> None:
    """Raises RuntimeError where no further plan can be submitted."""
    if submitted >= depth:
        raise RuntimeError(f"{depth} plans are submitted already; collect one first")


def result(plan: StepPlan, found: Mapping[int, RowResult], started: float, ended: float) -> StepResult:
    """found: by slot, of the rows of which there is something to tell."""
    rows = tuple(found.get(row.slot) or RowResult(row.slot) for row in plan.rows)
    return StepResult(plan.step, rows, started, ended)


def check_block(block: int, limits: Limits) -> None:
    """Raises ValueError for a block outside the pool."""
    if not 0 <= block < limits.blocks:
        raise ValueError(f"block {block} is outside the pool of {limits.blocks}")


def check_content(content: bytes | memoryview, block_bytes: int) -> None:
    """Raises ValueError for what is no block's."""
    if len(content) != block_bytes:
        raise ValueError(f"a block has {block_bytes} bytes, not {len(content)}")


def _problem(row: Row, limits: Limits, opened: bool, samples: bool) -> str | None:
    end = row.start + row.count
    if not 0 <= row.slot < limits.slots:
        return f"there are {limits.slots} slots"
    if row.start < 0 or end > limits.context:
        return f"positions {row.start} to {end} of a context of {limits.context}"
    if len(row.blocks) * BLOCK_TOKENS < end:
        return f"{len(row.blocks)} blocks do not cover {end} positions"
    if not all(0 <= block < limits.blocks for block in row.blocks):
        return f"a block is outside the pool of {limits.blocks}"
    if not all(0 <= token < limits.vocab for token in row.tokens):
        return f"a token is outside the vocabulary of {limits.vocab}"
    if row.opens is None and not opened:
        return "the first row of a sequence must open its slot"
    if row.opens is not None and row.opens.penalises and len(row.history) < row.start + len(row.tokens):
        return "it penalises, but its history ends before its tokens do"
    if not row.tokens and (row.opens is not None or not samples):
        return "a decode row needs a token that was sampled before"
    return None


def _written(row: Row) -> tuple[int, ...]:
    """The blocks that hold the row's own positions."""
    return row.blocks[row.start // BLOCK_TOKENS : -(-(row.start + row.count) // BLOCK_TOKENS)]
