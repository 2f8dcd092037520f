"""Second copies of requests that are late, to a node elsewhere: whichever shows its first token first answers.

Hedged requests as in Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): after the 95th percentile of what was
forecast, so that few requests are sent twice, and within a budget of their own, because in an overload *every* request
is late, and copies would double it.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgeproxy.routing.choose import Candidate, N
from edgeproxy.routing.forecast import Outlook

MAX_SHARE = 0.02
"""Of requests, that may be sent twice."""
BURST = 8.0
"""Copies that may be saved up: a quiet hour does not pay for a storm."""


class Hedging:
    """The budget of a proxy's second copies, and when one is due. Never more of them than `share` of the requests."""

    def __init__(self, share: float) -> None:
        """`share`: at most MAX_SHARE; 0: none."""
        self._share = min(share, MAX_SHARE)
        self._saved = 0.0

    @property
    def on(self) -> bool:
        return self._share > 0.0

    def sent(self) -> None:
        """A request was sent for the first time."""
        self._saved = min(self._saved + self._share, BURST)

    def take(self) -> bool:
        """Whether one more may be sent now; it then counts as sent."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


def due_s(outlook: Outlook, expected_s: float) -> float | None:
    """Seconds from sending after which a request is late whose first token was forecast after `expected_s`; None where
    the node has not answered often enough to tell."""
    late = outlook.lateness.p95_s
    return None if late is None else max(expected_s + late, expected_s)


def second(others: Iterable[N], tokens: float, now: float) -> N | None:
    """The node for a second copy: the first of `others` (in the order in which they would be tried) that has room. Not
    one that would only be tried because nobody better is left."""
    return next((node for node in others if _takes(node, tokens, now)), None)


def _takes(node: Candidate, tokens: float, now: float) -> bool:
    fit = node.ready and not node.draining and not node.standby and node.breaker.admits(now)
    return fit and not node.outlook.load.hot(now, tokens)
