"""The first token as it usually comes: the middle of what follows a forecast, learnt as a factor.

The choice goes by means, in which a rare long wait counts with all its length. Who is told a forecast, or waits for one
to be exceeded, wants the middle: half of the answers sooner, half later. A median by stochastic approximation, as in
`lateness`; one for requests that found the node idle and one for those behind others, which miss in different ways.
"""

from __future__ import annotations

STEP = 1.03
"""By which one answer moves the factor, up or down."""
BEHIND_S = 0.005
"""Of prompts ahead, from which on a request counts as behind others."""
MOST = 4.0


class Typical:
    __slots__ = ("_behind", "_idle")

    def __init__(self) -> None:
        self._idle = self._behind = 1.0

    def factor(self, ahead_s: float) -> float:
        """Of the forecast, for a request that finds prompts of so many seconds ahead of it."""
        return self._behind if ahead_s > BEHIND_S else self._idle

    def seen(self, ahead_s: float, *, later: bool) -> None:
        """An answer came later, or sooner, than the forecast times the factor."""
        moved = self.factor(ahead_s) * (STEP if later else 1.0 / STEP)
        moved = min(max(moved, 1.0 / MOST), MOST)
        if ahead_s > BEHIND_S:
            self._behind = moved
        else:
            self._idle = moved
