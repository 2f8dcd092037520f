"""Whose turn it is: among those that wait for a place, and among prompts that run. Pure."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from engine.fairness import DECODE_WEIGHT, PREFILL_WEIGHT, PRIORITY_TOKENS, Shares
from engine.forecast import Job, Pace
from engine.sequence import Sequence

OLDEST_EVERY = 4
"""Of so many steps one gives its prefill to the oldest first, the others to the shortest."""


class Waiting:
    """Sequences by rank; between tenants `shares` decides."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._line: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._line)

    def put(self, sequence: Sequence) -> None:
        insort(self._line, sequence, key=rank_of)

    def remove(self, sequence: Sequence) -> None:
        self._line.remove(sequence)

    def next(self) -> Sequence:
        """Of each tenant the first in rank, and of these that of the tenant for whom least was done."""
        first: dict[bytes, Sequence] = {}
        for sequence in self._line:
            first.setdefault(sequence.request.salt, sequence)
        if len(first) == 1:
            return self._line[0]
        standing = self._shares.standing
        return min(first.values(), key=lambda head: (standing(head.request.salt, head.request.priority), head.rank))

    def before(self, newcomer: Sequence, cost: Callable[[Sequence], int]) -> Iterator[Sequence]:
        """Those whose turn comes before that of one that is not here yet, in order.

        cost: what will have been done for the tenant of a sequence when its place is free again (`Shares`).
        """
        lines: dict[bytes, deque[Sequence]] = {}
        for sequence in sorted([*self._line, newcomer], key=rank_of):
            lines.setdefault(sequence.request.salt, deque()).append(sequence)
        served = {salt: self._shares.standing(salt, 0) for salt in lines}
        while lines:
            salt = min(lines, key=lambda salt: (served[salt] + _behind(lines[salt][0]), lines[salt][0].rank))
            sequence = lines[salt].popleft()
            if sequence is newcomer:
                return
            served[salt] += cost(sequence)
            if not lines[salt]:
                del lines[salt]
            yield sequence

    def crowding_out(self, salt: bytes) -> Sequence | None:
        """The last to have come of the tenant with most requests here, if it has more than `salt` would have.

        Only of those that have not run yet: of the others somebody has seen a part.
        """
        waiting = Counter(sequence.request.salt for sequence in self._line)
        crowd, count = max(waiting.items(), key=itemgetter(1), default=(salt, 0))
        if count < waiting[salt] + 2:
            return None
        theirs = (sequence for sequence in reversed(self._line) if sequence.request.salt == crowd)
        return next((sequence for sequence in theirs if not sequence.charged), None)


def _behind(sequence: Sequence) -> int:
    return sequence.request.priority * PRIORITY_TOKENS


def rank_of(sequence: Sequence) -> tuple[float, int]:
    return sequence.rank


def job_of(sequence: Sequence, blocks: int, pace: Pace) -> Job:
    """What is left of it; blocks: that its end gives back, or that its start takes."""
    return Job(sequence.unknown, _answer_of(sequence, pace), blocks)


def cost_of(sequence: Sequence, pace: Pace) -> int:
    """What will have been done for its tenant when it has ended, in the tokens of `Shares`."""
    return PREFILL_WEIGHT * sequence.unknown + round(DECODE_WEIGHT * _answer_of(sequence, pace))


def _answer_of(sequence: Sequence, pace: Pace) -> float:
    return pace.left(sequence.answer_left, had=sequence.generated, least=sequence.answer_certain)


def prefill_order(running: Iterable[Sequence], step: int) -> list[Sequence]:
    """In which order prompts share a step: of the best priority the one with least to do, or the oldest.

    running: by rank.
    """
    found = [sequence for sequence in running if sequence.prefills]
    if len(found) < 2:
        return found
    oldest = found[0]
    found.sort(key=_shortness)
    if step % OLDEST_EVERY == 0:
        found.remove(oldest)
        found.insert(0, oldest)
    return found


def _shortness(sequence: Sequence) -> tuple[int, int, tuple[float, int]]:
    return sequence.request.priority, sequence.prompt_left, sequence.rank
