"""How much of prompts one step takes. Pure.

What a step takes, everybody waits for: a stream for its next token, a newcomer for the step that runs. So beside
streams a step takes one quantum of prefill for each prompt that waits, up to a few: who is not let in to decode beside
others keeps them dear. Where nobody streams it takes more: small steps are slower for each token; but no more than a
quantum of others once a prompt ends in it, for whose first token somebody waits. A quantum is a time, since a token far
into a prompt costs several times one at its beginning.
"""

from __future__ import annotations

QUANTUM_S = 0.010
"""About how long the prefill of one step may take: who decodes waits no longer for another's prompt."""
QUANTA = 4
"""Most of them in a step beside streams."""
LONE_QUANTA = 8
"""In a step without any: nearly the rate of a whole one, where half as many lose a fifth."""
TILE = 12
"""Tokens that the kernels multiply at a time: a part of a tile takes nearly as long, but for its attention."""
LEAST_CHUNK = TILE // 2
"""Tokens of prefill a step, however slow they are."""
LAST = 1.5
"""So many times its share a chunk may take that ends a prompt: a step for the rest would be dearer."""
DECAY = 0.97
"""Per step with prefill, of what is known of their cost."""
FAR = 1000.0
"""Positions to a unit: so that both parts of the cost are of one size."""
PRIOR = 0.001
"""Weight of the guess that a token costs the same anywhere, where nothing else is known."""


class PrefillCost:
    """seconds = tokens * each + sum of their positions * back, by least squares over the steps of late."""

    def __init__(self) -> None:
        self._nn = self._np = self._pp = self._ny = self._py = 0.0
        self._each = self._back = 0.0

    @property
    def known(self) -> bool:
        return self._nn > 0

    def took(self, tokens: int, positions: int, seconds: float) -> None:
        """positions: the sum over tokens of how many stand before each."""
        n, p = float(tokens), positions / FAR
        self._nn = self._nn * DECAY + n * n
        self._np = self._np * DECAY + n * p
        self._pp = self._pp * DECAY + p * p
        self._ny = self._ny * DECAY + n * seconds
        self._py = self._py * DECAY + p * seconds
        self._solve()

    def of(self, tokens: int, start: int) -> float:
        """Seconds of a chunk that begins at `start`."""
        return tokens * (self._each + (start + tokens / 2) / FAR * self._back)

    def within(self, seconds: float, start: int) -> int:
        """How many tokens from `start` on take so long; known."""
        return int(seconds / (self._each + start / FAR * self._back))

    def _solve(self) -> None:
        mean = self._ny / self._nn
        pp = self._pp + PRIOR * self._nn
        back = (self._nn * self._py - self._np * self._ny) / (self._nn * pp - self._np * self._np)
        each = (self._ny - back * self._np) / self._nn
        if back < 0:
            each, back = mean, 0.0
        elif each < mean / 8:  # all that was seen lies far back
            each = mean / 8
            back = max(0.0, (self._ny - each * self._nn) / self._np)
        self._each, self._back = max(each, 1e-9), back


class Chunks:
    """Of one plan: how many tokens each prompt gets of it, one after the other."""

    def __init__(self, cost: PrefillCost, seconds: float, tokens: int) -> None:
        """seconds, tokens: that the plan has room for, about and at most."""
        self._cost = cost
        self._tokens = tokens
        self._left_s = seconds
        self._least = LEAST_CHUNK

    @property
    def spent(self) -> bool:
        return self._tokens < 1 or self._left_s <= 0

    def at_most(self, seconds: float) -> None:
        """Whatever else it takes is to take no longer."""
        self._left_s = min(self._left_s, seconds)

    def take(self, start: int, wanted: int) -> int:
        """Of `wanted` tokens from `start` on as many as the plan has room for; 0 where it has none."""
        most = min(wanted, self._tokens)
        if self._cost.known:
            if self._cost.of(most, start) > self._left_s * LAST:
                most = min(most, max(self._least, self._whole_tiles(start)))
            self._left_s = max(0.0, self._left_s - self._cost.of(most, start))
        self._least = 0
        self._tokens -= most
        return most

    def _whole_tiles(self, start: int) -> int:
        """Tokens of the time left, to the nearest tile."""
        within = self._cost.within(self._left_s, start)
        return within if within < TILE else (within + TILE // 2) // TILE * TILE
