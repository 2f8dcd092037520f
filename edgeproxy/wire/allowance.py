"""A token bucket: a burst at once, then a rate."""

from __future__ import annotations


class Allowance:
    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Spend one; False when nothing is left at `now` (seconds)."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - 1
        self._at = now
        return self._left >= 0
