"""The round trip to a node, from the proxy's own probes and, where they agree, from the kernel.

Smoothing follows RFC 6298 section 2. The minimum over five minutes stands for distance: queueing only ever adds to it.
A failed probe is no sample, so failure can make an estimate old but never small.
"""

from __future__ import annotations

from collections import deque
from math import inf

WINDOW_S = 300.0
UNMEASURED_S = 1.0
"""Taken for the network of a node that nobody has measured: after all that were, in the operator's order."""
_SLOT_S = 10.0
KERNEL_FLOOR = 0.7
"""A kernel round trip below this share of the probes' minimum ends at something nearer than the node: a relay, a load
balancer, a sidecar (through a 40 ms relay the kernel reads 0.02 ms)."""


class RttEstimator:
    """Seconds throughout; `now` is any clock that only goes forward."""

    __slots__ = ("_slots", "_updated", "network", "rttvar", "srtt")

    def __init__(self) -> None:
        self.srtt: float | None = None
        self.rttvar = 0.0
        self.network = UNMEASURED_S
        """What a request should expect of the network: srtt + 2 rttvar, once there was a sample."""
        self._slots: deque[tuple[float, float]] = deque()
        """(start, smallest probe) for each ten seconds that had one; the last always stays."""
        self._updated = -inf

    def probe(self, rtt: float, now: float) -> None:
        """A round trip on a warm connection, less the time that the node says it spent."""
        rtt = max(rtt, 0.0)
        self._smooth(rtt, now)
        start = now - now % _SLOT_S
        if self._slots and self._slots[-1][0] == start:
            self._slots[-1] = (start, min(rtt, self._slots[-1][1]))
        else:
            self._slots.append((start, rtt))
        self._forget(now)

    def kernel(self, rtt: float, now: float) -> bool:
        """The kernel's estimate for a live connection; False where it is not believed.

        It moves the smoothed value only. Were it let into the minimum, it would lower its own threshold step by step.
        """
        minimum = self.minimum(now)
        if minimum is None or rtt < KERNEL_FLOOR * minimum:
            return False
        self._smooth(rtt, now)
        return True

    def minimum(self, now: float) -> float | None:
        """The smallest probe of the last five minutes, or the last one known; None before the first."""
        self._forget(now)
        return min((rtt for _, rtt in self._slots), default=None)

    def age(self, now: float) -> float:
        """Seconds since the last sample; infinite before the first."""
        return now - self._updated

    def _smooth(self, rtt: float, now: float) -> None:
        if self.srtt is None:
            self.srtt, self.rttvar = rtt, rtt / 2
        else:
            self.rttvar += (abs(self.srtt - rtt) - self.rttvar) / 4
            self.srtt += (rtt - self.srtt) / 8
        self.network = self.srtt + 2 * self.rttvar
        self._updated = now

    def _forget(self, now: float) -> None:
        while len(self._slots) > 1 and self._slots[0][0] + _SLOT_S <= now - WINDOW_S:
            self._slots.popleft()
