"""One connection's share of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Turns:
    """Portions of what one peer has sent: what exceeds one is worked on in the next turn of the loop, so that whoever
    sends very much, or very small pieces, holds up himself alone.

    A loop may read one socket many times in a turn (libuv: 32 times, 256 KB each), so the reads in it count together.
    """

    __slots__ = ("_go_on", "_left", "_loop", "_portion", "_rest", "waiting")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, portion: int, rest: Callable[[], None], go_on: Callable[[], None]
    ) -> None:
        """`rest`: read nothing more for now. `go_on`: called in the next turn, to work on what is left and to read
        again when nothing is."""
        self._loop = loop
        self._portion = self._left = portion
        self._rest = rest
        self._go_on = go_on
        self.waiting = False
        """The portion is used up, and the next turn has not come."""

    def spend(self, pieces: int = 1) -> None:
        """So many pieces of work were done. Afterwards ask `waiting`."""
        self._left -= pieces
        if self._left <= 0 and not self.waiting:
            self.waiting = True
            self._rest()
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._left += self._portion  # one piece may have taken more than a portion: later turns pay for it
        if self._left <= 0:
            self._loop.call_soon(self._next)
            return
        self.waiting = False
        self._go_on()
