"""How much of prompts one step takes. Pure.

What a step takes, everybody waits for: a stream for its next token, a newcomer for the step that runs. So beside
streams a step takes one quantum of prefill for each prompt that waits, up to a few: who is not let in to decode beside
others keeps them dear. Where nobody streams it takes more: small steps are slower for each token; but no more than a
quantum of others once a prompt ends in it, for whose first token somebody waits. A quantum is a time, since a token far
into a prompt costs several times one at its beginning.
"""

from __future__ import annotations

from math import ceil

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
LEAST_LONE = TILE
"""The same where nobody streams."""
LAST = 1.5
"""So many times its share a chunk may take that ends a prompt: a step for the rest would be dearer."""
DECAY = 0.97
"""Per step with prefill, of what is known of their cost."""
FAR = 1000.0
"""Positions to a unit: so that both parts of the cost are of one size."""
PRIOR = 0.001
"""Weight of the guess that a token costs the same anywhere, where nothing else is known."""
FIXED_PRIOR = 0.3
"""Steps that the guess weighs that tokens are all that takes time."""
MOST_FIXED = 0.75
"""Of a mean step, at most, is believed not to be the tokens'."""


class PrefillCost:
    """seconds = fixed + tokens * each + sum of their positions * back, by least squares over the steps of late.

    What a step takes however few its tokens are (weights are read, threads wait for one that was put off its core) is
    no reason for smaller steps: they would take as long, and there would be more of them. So chunks go by what tokens
    add.
    """

    def __init__(self) -> None:
        self._count = self._n = self._p = self._y = 0.0
        self._nn = self._np = self._pp = self._ny = self._py = 0.0
        self._each = self._back = 0.0
        self.fixed_s = 0.0

    @property
    def known(self) -> bool:
        return self._nn > 0

    def took(self, tokens: int, positions: int, seconds: float) -> None:
        """positions: the sum over tokens of how many stand before each."""
        n, p = float(tokens), positions / FAR
        self._count = self._count * DECAY + 1
        self._n = self._n * DECAY + n
        self._p = self._p * DECAY + p
        self._y = self._y * DECAY + seconds
        self._nn = self._nn * DECAY + n * n
        self._np = self._np * DECAY + n * p
        self._pp = self._pp * DECAY + p * p
        self._ny = self._ny * DECAY + n * seconds
        self._py = self._py * DECAY + p * seconds
        self._solve()

    def of(self, tokens: int, start: int) -> float:
        """Seconds that a chunk which begins at `start` adds to a step."""
        return tokens * (self._each + (start + tokens / 2) / FAR * self._back)

    def alone(self, tokens: int, start: int, step_s: float) -> float:
        """Seconds of a prompt's tokens from `start` on in steps of their own, in each of which they may take step_s."""
        own_s = self.of(tokens, start)
        return own_s + ceil(own_s / step_s) * self.fixed_s

    def within(self, seconds: float, start: int) -> int:
        """How many tokens from `start` on add so much; known."""
        return int(seconds / (self._each + start / FAR * self._back))

    def _solve(self) -> None:
        # Ridge regression: moments less what a constant explains, which a guess of no constant holds back.
        share = 1 / (self._count + FIXED_PRIOR)
        nn = self._nn - share * self._n * self._n
        np = self._np - share * self._n * self._p
        pp = self._pp - share * self._p * self._p + PRIOR * nn
        ny = self._ny - share * self._n * self._y
        py = self._py - share * self._p * self._y
        back = (nn * py - np * ny) / (nn * pp - np * np)
        each = (ny - back * np) / nn
        least = self._ny / self._nn / 8
        if back < 0:
            each, back = ny / nn, 0.0
        elif each < least:  # all that was seen lies far back
            each, back = least, max(0.0, (py - least * np) / pp)
        self._settle(max(each, 1e-9), back)

    def _settle(self, each: float, back: float) -> None:
        """Tokens take a part of a mean step that is not too small, and no more than all of it."""
        own_s = each * self._n + back * self._p
        scale = min(max(1.0, (1 - MOST_FIXED) * self._y / own_s), self._y / own_s)
        self._each, self._back = max(each * scale, 1e-9), back * scale
        self.fixed_s = max(0.0, self._y - own_s * scale) / self._count


class Chunks:
    """Of one plan: how many tokens each prompt gets of it, one after the other."""

    def __init__(self, cost: PrefillCost, seconds: float, tokens: int, least: int = LEAST_CHUNK) -> None:
        """seconds, tokens: that the plan has room for, about and at most. least: that its first chunk has anyway."""
        self._cost = cost
        self._tokens = tokens
        self._left_s = seconds
        self._least = least

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
