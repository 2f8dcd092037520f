"""The slow loop of routing: which region is home, by distance alone, once per probe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

HOME_GAIN_S = 0.010
HOME_SHARE = 2 / 3
"""Home moves only to a region that is nearer by both (Tailscale, net/netcheck: the DERP home rule)."""
STRICT_S = 3600.0
"""More than any forecast."""


class Home:
    """The nearest region, held with the hysteresis that Tailscale's DERP proved, and the order of the others."""

    __slots__ = ("ranks", "region", "step_s")

    def __init__(self, regions: Iterable[str], *, strict: bool = False) -> None:
        """`regions` in the operator's order, which decides until there are measurements; `strict`: in a client's, from
        which no forecast departs."""
        self.step_s = STRICT_S if strict else 0.0
        """What each place in the order costs."""
        self.ranks: Mapping[str, int] = {region: rank for rank, region in enumerate(regions)}
        """Region -> its place, 0 for home, then nearest first; unmeasured ones last."""
        self.region: str | None = None
        """None until a region has been measured."""

    def update(self, minimums: Mapping[str, float | None]) -> None:
        """`minimums`: region -> smallest round trip of five minutes in seconds. A dead region keeps its last one."""
        measured = {region: rtt for region, rtt in minimums.items() if rtt is not None and region in self.ranks}
        if not measured:
            return
        nearest = min(measured, key=measured.__getitem__)
        if self.region is None or _clearly_nearer(measured[nearest], measured.get(self.region, inf)):
            self.region = nearest
        order = sorted(self.ranks, key=lambda region: (region != self.region, measured.get(region, inf)))
        self.ranks = {region: rank for rank, region in enumerate(order)}


def _clearly_nearer(new: float, old: float) -> bool:
    return old - new >= HOME_GAIN_S and new <= HOME_SHARE * old
