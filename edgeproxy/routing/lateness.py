"""How much later than forecast a node's first token comes at worst but once in twenty, learnt from what came.

Stochastic approximation of a quantile (Robbins and Monro, 1951): each answer moves the estimate up by 19 parts where it
came later still, else down by one, so that it rests where one in twenty is later, whatever the distribution. Only which
side a sample lies on counts: a request that another node answered meanwhile was late, however late it would have been.
"""

from __future__ import annotations

SHARE = 0.05
"""Of the answers, that come later."""
LEAST_SAMPLES = 20
"""Before one late answer was to be expected, nothing can be said of late answers."""
_STEP = 0.25
"""Of the mean distance between estimate and fact, of which a late answer moves the estimate by nearly one."""
_WEIGHT = 0.05


class Lateness:
    """Seconds; negative ones where a node is always earlier than forecast."""

    __slots__ = ("_distance", "_late", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self._late = 0.0
        self._distance = 0.0
        """Mean, between estimate and fact: an estimate that is far off moves in large steps."""

    def seen(self, late_s: float) -> None:
        """A first token came so much later than forecast (earlier: negative)."""
        self.samples += 1
        self._distance += (abs(late_s - self._late) - self._distance) * _WEIGHT
        if self.samples <= LEAST_SAMPLES:  # the greatest of twenty is the quantile
            self._late = late_s if self.samples == 1 else max(self._late, late_s)
        else:
            self._move(later=late_s > self._late)

    def overtaken(self) -> None:
        """It had not come when it was late already, and now nobody will know."""
        self._move(later=True)

    @property
    def p95_s(self) -> float | None:
        """None: too few answers yet."""
        return None if self.samples < LEAST_SAMPLES else self._late

    def _move(self, *, later: bool) -> None:
        self._late += _STEP * self._distance * ((1.0 - SHARE) if later else -SHARE)
