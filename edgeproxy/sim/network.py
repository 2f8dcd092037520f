"""How far regions are from each other: measured round trips, with jitter."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from random import Random

SPREAD = (
    "eastus northeurope southeastasia westus2 brazilsouth japaneast southafricanorth australiaeast germanywestcentral "
    "centralindia canadacentral uksouth koreacentral uaenorth southcentralus swedencentral eastasia"
).split(" ")
"""The order in which regions are taken: a few lie far apart, more lie closer."""
WITHIN_S = 0.001
"""Round trip from a proxy to the nodes of its own region."""


@dataclass(frozen=True, slots=True)
class Network:
    names: Sequence[str]
    rtt_s: Sequence[Sequence[float]]
    """[from][to], without jitter."""
    jitter: float = 0.05
    """Mean of what is added to a trip, as a share of it; exponential, so that now and then it is much."""

    def trip(self, source: int, target: int, rng: Random) -> float:
        """One round trip; a request takes half of it each way."""
        rtt = self.rtt_s[source][target]
        return rtt + rng.expovariate(1.0) * self.jitter * rtt if self.jitter else rtt


def network(count: int, path: Path | None = None, jitter: float = 0.05) -> Network:
    """The first `count` of SPREAD, else of the table at `path`. Raises ValueError where there are not so many.

    The table is a CSV of milliseconds: a header `source,NAME,...`, a row for each; lines with # are skipped.
    """
    source = path or files("edgeproxy.sim") / "data" / "region-rtt.csv"
    lines = [line for line in source.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    try:
        table = {row["source"]: row for row in csv.DictReader(lines)}
        names = [name for name in (SPREAD if path is None else table) if name in table][:count]
        trips = [[_seconds(table[a][b]) if a != b else WITHIN_S for b in names] for a in names]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a table of round trips in ms ({error!r})") from error
    if len(names) < count:
        raise ValueError(f"{count} regions are asked for and {len(names)} are in the table of round trips")
    return Network(names, trips, jitter)


def _seconds(milliseconds: str) -> float:
    value = float(milliseconds)
    if not 0 <= value < 1e6:
        raise ValueError(f"{milliseconds} ms")
    return value / 1e3
