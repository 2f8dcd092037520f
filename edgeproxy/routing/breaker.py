"""Circuit breaker of one node: opens on failures, waits 1 to 30 s, tries one request or probe, closes on success.

What the node says about a request (4xx) never counts, or one bad client would take a node from everybody. 429 is no
failure either: it sets a time before which the node is left alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Literal

State = Literal["closed", "open", "half-open"]


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    consecutive: int = 5
    share: float = 0.5
    """Of at least `least` requests within `window_s`."""
    least: int = 10
    window_s: float = 30.0
    first_wait_s: float = 1.0
    last_wait_s: float = 30.0


@dataclass(slots=True)
class _Second:
    start: float
    requests: int = 0
    failures: int = 0


class Breaker:
    """Seconds; `now` is any clock that only goes forward."""

    __slots__ = (
        "_consecutive",
        "_first_wait_s",
        "_limits",
        "_newest",
        "_open_until",
        "_seconds",
        "_trial_until",
        "_wait_s",
        "not_before",
        "tripped",
        "wary_until",
    )

    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self.not_before = -inf
        """The node asked to be left alone until then (429 with Retry-After)."""
        self._limits = limits or BreakerLimits()
        self.tripped = False
        """Open or half-open."""
        self.wary_until = -inf
        """From then on the node is admitted; before, `admits` is to be asked."""
        self._open_until = -inf
        self._trial_until = -inf
        self._first_wait_s = self._wait_s = self._limits.first_wait_s
        self._consecutive = 0
        self._seconds: deque[_Second] = deque()
        self._newest = _Second(-inf)
        """The last of them, once there is one."""

    def state(self, now: float) -> State:
        if not self.tripped:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def admits(self, now: float) -> bool:
        """Whether a request may be sent now. Looking changes nothing; `started` takes the half-open place."""
        if now < self.not_before:
            return False
        return not self.tripped or (now >= self._open_until and now >= self._trial_until)

    def started(self, now: float) -> None:
        """A request is being sent. Half-open, it is the one trial, until it ends or the longest wait has passed."""
        if self.tripped:
            self._trial_until = now + self._limits.last_wait_s

    def succeeded(self, now: float) -> None:
        """The node answered: any status below 500."""
        self._consecutive = 0
        self._wait_s = self._first_wait_s
        if self.tripped:
            self._close()
        else:
            self._second(now).requests += 1

    def failed(self, now: float) -> None:
        """Connect error, 5xx, or no first byte in time."""
        if self.tripped:
            if now >= self._open_until:
                self._wait_s = min(self._wait_s * 2, self._limits.last_wait_s)
                self._open(now)
            return
        self._consecutive += 1
        second = self._second(now)
        second.requests += 1
        second.failures += 1
        if self._consecutive >= self._limits.consecutive or self._share_exceeded(now):
            self._open(now)

    def abandoned(self) -> None:
        """The client left before anything was learnt: the half-open place is free again."""
        self._trial_until = -inf

    def probed(self, now: float) -> None:
        """A probe succeeded. It closes a half-open breaker but keeps the wait, which only a real answer shortens:
        a node whose probe lives while its requests die must not be tried every second."""
        if self.tripped and now >= self._open_until:
            self._close()
            self._wait_s = min(self._wait_s * 2, self._limits.last_wait_s)

    def hold_off(self, seconds: float, now: float) -> None:
        """429: nothing is sent for `seconds`."""
        self.not_before = max(self.not_before, now + seconds)
        self.wary_until = max(self.wary_until, self.not_before)

    def _open(self, now: float) -> None:
        self.tripped = True
        self.wary_until = inf
        self._open_until = now + self._wait_s
        self._trial_until = -inf

    def _close(self) -> None:
        self.tripped = False
        self.wary_until = self.not_before
        self._trial_until = -inf
        self._consecutive = 0
        self._seconds.clear()
        self._newest = _Second(-inf)

    def _second(self, now: float) -> _Second:
        """The one of `now`."""
        newest = self._newest
        if not newest.start <= now < newest.start + 1.0:
            newest = self._newest = _Second(now - now % 1.0)
            self._seconds.append(newest)
            self._forget(now)
        return newest

    def _share_exceeded(self, now: float) -> bool:
        self._forget(now)
        requests = sum(second.requests for second in self._seconds)
        failures = sum(second.failures for second in self._seconds)
        return requests >= self._limits.least and failures >= self._limits.share * requests

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0].start < now - self._limits.window_s:
            self._seconds.popleft()
