"""A token bucket: a burst at once, then a rate."""

from __future__ import annotations


class Allowance:
    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = now

    def take(self, now: float, count: float = 1) -> bool:
        """Spend `count`; False when that was more than is left at `now` (seconds). A negative one is given back."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - count
        self._at = now
        return self._left >= 0
