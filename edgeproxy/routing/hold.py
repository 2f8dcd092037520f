"""Requests that wait at the proxy because every node is hot: who goes first when one turns cold. Bounded.

A wait here can still end at any node, one at a node only there (SkyLB's selective pushing, arXiv 2505.24095).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from math import inf
from operator import attrgetter

MAX_HELD = 1024
"""One more goes to the least bad queue at once."""


class Held:
    """One request that waits."""

    __slots__ = ("arrival", "deadline", "order", "slots", "until")

    def __init__(
        self, slots: Collection[int], until: float, arrival: float, *, priority: int = 0, deadline: float = inf
    ) -> None:
        """`slots`: of the nodes that may serve it. `priority`: the smaller goes first. `deadline`: when its budget for
        a first token ends. `until`: when it waits no longer."""
        self.slots = slots
        self.until = until
        self.arrival = arrival
        self.deadline = deadline
        self.order = (priority, deadline, arrival)


class Room:
    """All that wait: by class, then by deadline, then by arrival."""

    __slots__ = ("_held", "_most")

    def __init__(self, most: int = MAX_HELD) -> None:
        self._held: list[Held] = []
        self._most = most

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, held: Held) -> bool:
        """False: the room is full."""
        if len(self._held) >= self._most:
            return False
        insort(self._held, held, key=_order)
        return True

    def take(self, slot: int) -> Held | None:
        """A node has turned cold: the best of those that may go there leaves the room."""
        for index, held in enumerate(self._held):
            if slot in held.slots:
                del self._held[index]
                return held
        return None

    def leave(self, held: Held) -> None:
        """It waits no longer: its time is over, or its client gone. Harmless when it has been taken."""
        if held in self._held:
            self._held.remove(held)

    def due(self, now: float) -> list[Held]:
        """Those whose time is over leave the room, in order."""
        found = [held for held in self._held if held.until <= now]
        if found:
            self._held = [held for held in self._held if held.until > now]
        return found


_order = attrgetter("order")
