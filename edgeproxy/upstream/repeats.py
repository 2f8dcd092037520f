"""What a child says that fails again and again: in full once, then not again as long as it is the same. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

MOST_LINES = 500
"""Of one life are compared with the next."""
_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


class Repeats:
    """A child's lives, one after the other: `begin`, its lines, `end`.

    A line waits while all that came before it is as in the life before. So what is different is told at once, behind
    what led to it, and of a life that was the same from start to end nothing is told but that.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._before: list[str] = []
        self._lines: list[str] = []
        self._waiting: list[str] | None = None
        """None: this life is told as it comes."""
        self._status = ""
        self._times = 0

    def begin(self) -> None:
        self._before, self._lines = self._lines, []
        self._waiting = [] if self._times else None

    def line(self, text: str) -> None:
        number, plain = len(self._lines), _NUMBER.sub("0", text)  # times, addresses and process ids are no news
        if number <= MOST_LINES:
            self._lines.append(plain)
        if self._waiting is None:
            self._tell(text)
            return
        self._waiting.append(text)
        if number >= MOST_LINES or list(islice(self._before, number, number + 1)) != [plain]:
            self.go_on()

    def go_on(self) -> None:
        """It lives, or says something else: what waits is told, and all that comes."""
        waiting, self._waiting = self._waiting or [], None
        for text in waiting:
            self._tell(text)

    def end(self, status: str) -> int:
        """How many lives before ended in the same way, one after the other. `status`: how this one did."""
        if self._waiting is not None and status == self._status and len(self._lines) == len(self._before):
            self._times += 1
        else:
            self.go_on()
            self._times = 1
        self._status = status
        return self._times - 1
