"""The ledger of one request: where the time to its first content went, and the header that tells it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MAX_TIMING_BYTES = 1024
BUDGET_S = 0.150
"""For a first token, where nobody names another: below that people do not perceive waiting."""
NODE_TERMS = ("parse", "queue", "prefill", "first")
"""What a native node tells of a first token, in the order in which it happens; the terms do not overlap."""


class Ledger(NamedTuple):
    """Seconds; None where a term is not known (a foreign node reports none). Order is that of the header.

    What the user waits is `client + total`. All terms but the client's add up to `total`, which this proxy sees.
    """

    client: float | None = None
    """Round trip between the client and this proxy, as the kernel or QUIC measured it: before and after the total."""
    rtt: float | None = None
    """Region round trip at the time of the request. The one term that is an estimate, and so never more than what the
    measured ones leave of the total."""
    edge: float | None = None
    """Spent in this proxy, from the byte that completes the request to its sending to the node."""
    hold: float | None = None
    """Waited in this proxy for a node to turn cold."""
    failover: float | None = None
    """Lost at nodes that failed before any content; None where the first one answered."""
    parse: float | None = None
    """On the node: reading the request, rendering and tokenising the prompt."""
    queue: float | None = None
    """On the node, before the first prefill step."""
    prefill: float | None = None
    first: float | None = None
    """On the node, the first decode step, and what it takes to tell what came of it."""
    relay: float | None = None
    """In this proxy, from the first content's bytes to their being in the hands of the client's transport. Not known of
    an answer that is not streamed, nor yet on the answer's own header, which goes out with that content."""
    unexplained: float | None = None
    """What is left of the total once all other terms are taken off: on a foreign node, all that happens there."""
    total: float | None = None
    """From the byte at this proxy that completes the request to the end of `relay`; where that is not known, to its
    beginning."""

    @property
    def wait(self) -> float | None:
        """What the user waits for the first content, and what the budget is for; the client's round trip is left out
        where nobody knows it."""
        return None if self.total is None else self.total + (self.client or 0.0)

    def server_timing(self) -> bytes:
        """The value of `Server-Timing` (W3C), durations in milliseconds: `rtt;dur=40.1, edge;dur=0.31, ...`."""
        known = tuple([max(value, 0.0) * 1e3 for value in self if value is not None])
        return _template(tuple([value is not None for value in self])) % known

    def remaining(self, budget_s: float) -> float | None:
        """What is left of the budget, negative once overspent; None while the total is not known."""
        wait = self.wait
        return None if wait is None else budget_s - wait


def settle(left: float, rtt: float | None) -> tuple[float | None, float]:
    """(round trip, unexplained): shares out what the measured terms leave of a total, to the region's round trip up to
    its estimate `rtt`, the rest to nobody. Negative, which only rounding makes it, is nothing."""
    if left < 0.0:
        left = 0.0
    if rtt is None:
        return None, left
    return (rtt, left - rtt) if rtt < left else (left, 0.0)


_ENTRY = re.compile(
    rf"(?:^|,)\s*({'|'.join(NODE_TERMS)})\s*;(?:[^,]*;)?\s*dur=\s*"
    r"([0-9]{1,9}(?:\.[0-9]*)?(?:[eE]-[0-9]+)?)(?=\s*(?:[,;]|$))"
)
"""A term and its milliseconds, where they are a number below 1e9: `float` reads all that is found."""


@lru_cache(maxsize=128)
def _template(known: tuple[bool, ...]) -> bytes:
    """Which terms are known -> the header with their places left open."""
    return b", ".join(
        b"%b;dur=%%.2f" % name.encode() for name, is_known in zip(Ledger._fields, known, strict=True) if is_known
    )


def node_terms(server_timing: bytes | None) -> dict[str, float]:
    """A node's `queue`, `prefill` and `first` in seconds, from its `Server-Timing`; what is odd is left out."""
    if server_timing is None or len(server_timing) > MAX_TIMING_BYTES:
        return {}
    return {name: float(milliseconds) / 1e3 for name, milliseconds in _ENTRY.findall(server_timing.decode("latin-1"))}
