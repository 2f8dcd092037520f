#!/usr/bin/env python3
"""What one routing decision costs, in microseconds of CPU: prefix lookup, shortlist, forecasts, choice, own send.

    .venv/bin/python scripts/bench/choose.py [--json] [--blocks 40]

Fleets of 12 nodes in 3 regions and of 1,000 in 20, loaded at random. The prompt has 4 KiB, of which half of the nodes
hold a part, or none does. Each number is the median over blocks of 200 decisions, `best` the smallest block.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.choose import Decision, Wanted, choose
from edgeproxy.routing.forecast import Outlook
from edgeproxy.routing.home import Home
from edgeproxy.routing.load import Occupancy
from edgeproxy.routing.prefix import PrefixView, chain
from edgeproxy.routing.shortlist import Shortlist

BLOCK = 200
PROMPT = Random(1).randbytes(4096)
HALF, NONE = (0, 0, 4, 16), (0,)
"""Of the prompt's chunks, those that a node holds, drawn from these."""
FLEETS = {"12 nodes": (3, 4, HALF), "12, none holds": (3, 4, NONE), "1000 nodes": (20, 50, HALF)}


@dataclass(slots=True)
class Node:
    name: str
    region: str
    slot: int
    ready: bool = True
    draining: bool = False
    standby: bool = False
    outlook: Outlook = field(default_factory=Outlook)
    breaker: Breaker = field(default_factory=Breaker)


def decisions(regions: int, each: int, held: tuple[int, ...]) -> Callable[[int], None]:
    rng, prefixes, nodes = Random(1), PrefixView(), list[Node]()
    rtts: dict[str, float | None] = {f"region-{region}": 0.005 + 0.012 * region for region in range(regions)}
    names = chain(PROMPT, 1)
    for region, rtt in rtts.items():
        for index in range(each):
            node = Node(f"{region}-{index}", region, prefixes.join())
            node.outlook.rtt.probe(rtt or 0.0, 0.0)
            node.outlook.reported(Occupancy(rng.randrange(8), 0, rng.randrange(400), 100_000), 0.0)
            prefixes.sent(node.slot, names[: rng.choice(held)])
            nodes.append(node)
    home = Home(rtts)
    home.update(rtts)
    shortlist = Shortlist(nodes)
    now = 0.0

    def decide(count: int) -> None:
        nonlocal now
        for _ in range(count):
            now += 0.001
            levels = [(slots, depth * 64.0) for slots, depth in prefixes.holders(chain(PROMPT, 1))]
            wanted = Wanted(1024.0, levels)
            picked, far = shortlist.pick(wanted, home, now, rng)
            found = choose(picked, wanted, home, now, rng, far=far)
            assert isinstance(found, Decision) and found.first is not None
            outlook = found.first.outlook
            outlook.load.ended(outlook.sent(now, 16.0), now, served=False)

    return decide


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--blocks", type=int, default=40)
    args = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for name, shape in FLEETS.items():
        decide, times = decisions(*shape), list[float]()
        decide(BLOCK)
        for _ in range(args.blocks):
            start = time.process_time()
            decide(BLOCK)
            times.append((time.process_time() - start) / BLOCK * 1e6)
        found[name] = {"median": statistics.median(times), "best": min(times)}
    if args.json:
        print(json.dumps({"unit": "us_cpu_per_decision", "block": BLOCK, "fleets": found}))
        return
    for name, values in found.items():
        print(f"{name:14} median {values['median']:6.1f} us   best {values['best']:6.1f} us")


if __name__ == "__main__":
    main()
