"""A clock that only jumps: the heap of what is to happen, in order of time, then of asking."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """Seconds from the beginning of a run. Actions of one moment run in the order in which they were asked for."""

    __slots__ = ("_asked", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._asked = 0
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, time: float, action: Callable[..., object], *arguments: Any) -> None:
        """`time` must not lie before `now`."""
        self._asked += 1
        heappush(self._heap, (time, self._asked, action, arguments))

    def stop(self) -> None:
        """Nothing that was asked for happens any more."""
        self._heap.clear()

    def run(self) -> int:
        """Until nothing is left to happen; returns how many actions there were."""
        heap, done = self._heap, 0
        while heap:
            self.now, _, action, arguments = heappop(heap)
            action(*arguments)
            done += 1
        return done
