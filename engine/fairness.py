"""Whose turn it is among tenants: who was served least. Pure.

Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI '24): each tenant has a counter
of what was done for it, and the one with the smallest comes first. Who comes after a pause starts where the others
stand, so nobody saves up service by staying away. Two tenants that always have something waiting differ by no more than
what one request and the running ones cost, however many requests either sends.
"""

from __future__ import annotations

from collections import OrderedDict

PREFILL_WEIGHT = 1
DECODE_WEIGHT = 4
"""A decoded token costs about as much as so many of a prompt, in a batch of a few."""
PRIORITY_TOKENS = 4096
"""A request of one priority less waits as if so much had been done for its tenant already."""
TENANTS = 1024
"""Counters that are kept of tenants that have nothing to run: bounds what they take."""


class Shares:
    """Counters by tenant: an opaque name."""

    def __init__(self) -> None:
        self._served: OrderedDict[bytes, int] = OrderedDict()
        """The one that came longest ago first."""
        self._present: dict[bytes, int] = {}
        """How many requests of each have not ended."""
        self._least = 0
        """Where the one stands that came last, while nobody is there."""

    def __len__(self) -> int:
        return len(self._served)

    def came(self, tenant: bytes) -> None:
        """A request that has not ended is there."""
        if tenant not in self._present:
            start = self._start(tenant)
            self._served.pop(tenant, None)
            self._served[tenant] = start
        self._present[tenant] = self._present.get(tenant, 0) + 1
        self._forget()

    def went(self, tenant: bytes) -> None:
        self._present[tenant] -= 1
        if not self._present[tenant]:
            del self._present[tenant]
            if not self._present:
                self._least = self._served[tenant]

    def prefilled(self, tenant: bytes, tokens: int) -> None:
        self._served[tenant] += PREFILL_WEIGHT * tokens

    def decoded(self, tenant: bytes, tokens: int) -> None:
        self._served[tenant] += DECODE_WEIGHT * tokens

    def standing(self, tenant: bytes, priority: int) -> int:
        """The least comes first. Of a tenant that has nothing here: where it would start."""
        served = self._served[tenant] if tenant in self._present else self._start(tenant)
        return served + priority * PRIORITY_TOKENS

    def _start(self, tenant: bytes) -> int:
        floor = min((self._served[other] for other in self._present), default=self._least)
        return max(self._served.get(tenant, 0), floor)

    def _forget(self) -> None:
        if len(self._served) <= TENANTS + len(self._present):
            return
        gone = next(tenant for tenant in self._served if tenant not in self._present)
        del self._served[gone]
