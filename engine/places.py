"""Who has a place in the engine: a slot, from the start of a run until no plan names it any more. Pure."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from engine.kv import IntegrityError
from engine.sequence import Phase, Sequence
from engine.waiting import rank_of


class Places:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(reversed(range(slots)))
        self.running: list[Sequence] = []
        """By rank."""
        self.leaving: list[Sequence] = []
        """Ended or preempted, but a plan that has not completed may name them."""

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def rehearsing(self) -> bool:
        """Whether all that runs is a rehearsal."""
        return bool(self.running) and all(sequence.request.rehearsal for sequence in self.running)

    def take(self, sequence: Sequence) -> None:
        """There is a free one."""
        sequence.phase = Phase.RUNNING
        sequence.slot = self._free.pop()
        insort(self.running, sequence, key=rank_of)

    def leave(self, sequence: Sequence) -> None:
        sequence.phase = Phase.LEAVING
        self.running.remove(sequence)
        self.leaving.append(sequence)

    def left(self, completed: int) -> Iterator[Sequence]:
        """Gives the places back of those that no plan after `completed` names."""
        for sequence in [gone for gone in self.leaving if gone.last_step <= completed]:
            self.leaving.remove(sequence)
            self._free.append(sequence.slot)
            yield sequence

    def holders(self) -> list[Sequence]:
        return self.running + self.leaving

    def check(self) -> None:
        """Raises IntegrityError unless every slot is where it belongs."""
        if sorted(self._free + [sequence.slot for sequence in self.holders()]) != list(range(self.slots)):
            raise IntegrityError("slots are lost or held twice")
