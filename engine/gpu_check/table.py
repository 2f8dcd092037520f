"""The table that the check prints, and whether all of it is as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    found: str
    wanted: str = ""
    good: bool | None = None
    """None: it is told, and nothing is asked of it."""


class Table:
    """Lines, printed as they come."""

    def __init__(self, clock: Callable[[], float], limit_s: float) -> None:
        self._clock, self._limit = clock, clock() + limit_s
        self.failed = 0

    def run(self, name: str, check: Callable[[], Iterable[Line]]) -> None:
        """One check's lines. What raises, or would begin too late, has failed."""
        if self._clock() > self._limit:
            self._put(Line(name, "not run: out of time", "", False))
            return
        try:
            for line in check():
                self._put(line)
        except Exception as error:
            self._put(Line(name, f"{type(error).__name__}: {error}".splitlines()[0][:150], "no error", False))

    def _put(self, line: Line) -> None:
        mark = {None: "    ", True: "ok  ", False: "FAIL"}[line.good]
        self.failed += line.good is False
        print(f"{mark} {line.what:<46} {line.found:<34} {line.wanted}".rstrip(), flush=True)
