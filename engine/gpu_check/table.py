"""The table that the check prints, and whether all of it is as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    found: str
    wanted: str = ""
    good: bool | None = None
    """None: it is told, and nothing is asked of it."""


Check = Callable[[], Iterator[Line]]


class Table:
    """Lines, printed as they come."""

    def __init__(self) -> None:
        self.failed = 0

    def put(self, line: Line) -> None:
        mark = {None: "    ", True: "ok  ", False: "FAIL"}[line.good]
        self.failed += line.good is False
        print(f"{mark} {line.what:<46} {line.found:<34} {line.wanted}".rstrip(), flush=True)

    def fail(self, name: str, why: str) -> None:
        """A check that did not come to its end."""
        self.put(Line(name, (why.splitlines() or [""])[0][:150], "no error", False))
