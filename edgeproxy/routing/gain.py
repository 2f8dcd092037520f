"""How much of something expected is really found: one factor, by least squares through the origin, with forgetting."""

from __future__ import annotations

DECAY = 0.95
"""Of what earlier samples weigh: the last twenty or so count, each by the square of its size."""
PRIOR = 0.020**2
"""What the first guess weighs: it is kept until 20 ms altogether have been compared with it."""


class Gain:
    __slots__ = ("_most", "_xx", "_xy", "value")

    def __init__(self, value: float, most: float) -> None:
        """`value`: the first guess; `most`: never more than this, nor less than nothing."""
        self.value = value
        self._most = most
        self._xx, self._xy = PRIOR, value * PRIOR

    def learn(self, expected: float, found: float) -> None:
        """Seconds."""
        if expected > 0.0:
            self._xx = self._xx * DECAY + expected * expected
            self._xy = self._xy * DECAY + expected * found
            self.value = min(max(self._xy / self._xx, 0.0), self._most)
