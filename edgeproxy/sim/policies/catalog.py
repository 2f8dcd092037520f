"""Policies by the names that the command line knows them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING

from edgeproxy.sim.policies.base import Place, Policy
from edgeproxy.sim.policies.oracle import Oracle
from edgeproxy.sim.policies.ours import Edgeproxy
from edgeproxy.sim.policies.plain import LeastLoad, Nearest, PeakEwma, RoundRobin
from edgeproxy.sim.policies.prefix import CacheAware, Gorgo, SelectivePush

if TYPE_CHECKING:
    from edgeproxy.sim.run import Run

Make = Callable[[Place, Random, "Run"], Policy]


def _blind(policy: Callable[[Place, Random], Policy]) -> Make:
    """A policy gets nothing of the run it is in."""
    return lambda place, rng, _: policy(place, rng)


POLICIES: Mapping[str, Make] = {
    "edgeproxy": _blind(Edgeproxy),
    "nearest": _blind(Nearest),
    "round-robin": _blind(RoundRobin),
    "least-load": _blind(LeastLoad),
    "cache-aware": _blind(CacheAware),
    "peak-ewma": _blind(PeakEwma),
    "gorgo": _blind(Gorgo),
    "skylb": _blind(SelectivePush),
    "oracle": Oracle,
}
ORACLES = ("oracle",)
"""Not among `all`: it is no router but a bound, and slow."""


def chosen(names: str) -> Sequence[str]:
    """`all`, or names with commas between. Raises ValueError for a name there is not."""
    if names == "all":
        return [name for name in POLICIES if name not in ORACLES]
    found = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in found if name not in POLICIES]
    if unknown or not found:
        raise ValueError(
            f"no policy is named {', '.join(unknown) or names!r}; there are {', '.join(POLICIES)}, and all"
        )
    return list(dict.fromkeys(found))
