"""How long an engine has got nothing done while it could have. Pure."""

from __future__ import annotations


class Stall:
    """Time counts as far as somebody looked on.

    A process that was stopped (SIGSTOP, `docker pause`, a debugger) finds on its return that the clock has gone on, and
    that nothing was done: nothing could be. So between two looks no more than `most_s` counts, however long they lie
    apart. Who relies on it looks more often than that.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._looked: float | None = None
        self._since: float | None = None
        self._seconds = 0.0

    def look(self, busy_since: float | None, now: float) -> float:
        """Seconds. busy_since: when the engine last got something done with more to do; None: it has nothing to do."""
        seen_s = self._most_s if self._looked is None else min(now - self._looked, self._most_s)
        self._looked = now
        if busy_since is None:
            self._seconds = 0.0
        elif busy_since != self._since:
            self._seconds = max(0.0, min(now - busy_since, seen_s))
        else:
            self._seconds += seen_s
        self._since = busy_since
        return self._seconds
