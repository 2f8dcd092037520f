"""Whose sampling waits for a mask: constrained sequences in plans that were submitted. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from engine.jump import look_ahead
from engine.sequence import Sequence
from engine.step import Row, StepPlan


class Mask(NamedTuple):
    """As `Executor.allow` takes it."""

    slot: int
    step: int
    mask: bytes | None


class _Waiting(NamedTuple):
    slot: int
    step: int
    tokens: int
    """That must be known before it can be said what may follow them."""
    sequence: Sequence


class DueMasks:
    """A plan runs one step ahead of what is known: the mask of a row follows when the token before it is there."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def planned(self, plan: StepPlan, sequences: list[Sequence]) -> None:
        for row, sequence in zip(plan.rows, sequences, strict=True):
            if row.sample and sequence.request.constraint is not None:
                self._waiting.append(_Waiting(row.slot, plan.step, _end(row), sequence))

    def due(self) -> Iterator[Mask]:
        """Each mask once, and one at a time of a slot. Of what has ended meanwhile too: its row waits all the same.

        To be taken to its end: then what is forced is known to the next plan.
        """
        waiting, self._waiting = self._waiting, []
        given: list[_Waiting] = []
        for row in waiting:
            constraint = row.sequence.request.constraint
            if row.sequence.finish is not None or constraint is None:
                yield Mask(row.slot, row.step, None)
            elif row.sequence.ahead is None and len(row.sequence.tokens) >= row.tokens:
                yield Mask(row.slot, row.step, constraint.mask())
                given.append(row)
            else:
                self._waiting.append(row)
        for row in given:  # when nobody waits for a mask any more
            look_ahead(row.sequence, row.tokens)


def _end(row: Row) -> int:
    return row.start + row.count
