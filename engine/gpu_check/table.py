"""The table that the check prints, whether all of it is as it should be, and that it ends in time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

GRACE_S = 10.0
"""That a check may be late with its next line, before the whole table is ended."""


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    found: str
    wanted: str = ""
    good: bool | None = None
    """None: it is told, and nothing is asked of it."""


Check = Callable[[], Iterator[Line]]


class Table:
    """Lines, printed as they come. Each check has its bound: between two of its lines it is ended there, and one that
    hangs in the device or the compiler, which nothing else can end, ends the process."""

    def __init__(self, clock: Callable[[], float], limit_s: float, end: Callable[[int], object] = os._exit) -> None:
        """end: called with 1, in a thread of its own, where a check hangs."""
        self._clock, self._limit = clock, clock() + limit_s
        self._end = end
        self.failed = 0

    def run(self, name: str, check: Check, limit_s: float = 60.0) -> None:
        """One check's lines. What raises, takes more than `limit_s`, or would begin too late, has failed."""
        bound = min(limit_s, self._limit - self._clock())
        if bound <= 0:
            self._put(Line(name, "not run: out of time", "", False))
            return
        watchdog = threading.Timer(bound + GRACE_S, self._hangs, (name, bound + GRACE_S))
        watchdog.daemon = True
        watchdog.start()
        try:
            self._lines(name, check, bound)
        finally:
            watchdog.cancel()

    def _lines(self, name: str, check: Check, bound: float) -> None:
        deadline = self._clock() + bound
        try:
            lines = check()
            for line in lines:
                self._put(line)
                if self._clock() > deadline:
                    with suppress(AttributeError):
                        lines.close()  # type: ignore[attr-defined]
                    raise TimeoutError(f"not done after {bound:.0f} s")
        except Exception as error:
            self._put(Line(name, f"{type(error).__name__}: {error}".splitlines()[0][:150], "no error", False))

    def _hangs(self, name: str, seconds: float) -> None:
        self._put(Line(name, f"hangs: no line within {seconds:.0f} s; what follows was not run", "", False))
        self._end(1)

    def _put(self, line: Line) -> None:
        mark = {None: "    ", True: "ok  ", False: "FAIL"}[line.good]
        self.failed += line.good is False
        print(f"{mark} {line.what:<46} {line.found:<34} {line.wanted}".rstrip(), flush=True)
