"""The rules of the choice as they are written, with every node's cost worked out: an oracle for `routing.choose`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from random import Random
from typing import NamedTuple

from edgeproxy.routing.choose import (
    AFFINITY_S,
    AFFINITY_SHARE,
    EQUAL_SHARE,
    GAIN_S,
    GAIN_SHARE,
    LEAST_HOLD_S,
    MAX_HOLD_S,
    Hold,
    Wanted,
)
from edgeproxy.routing.home import Home
from edgeproxy.routing.rtt import UNMEASURED_S
from tests.routing.fleet import Node


class Plain(NamedTuple):
    first: str | None
    reason: str
    hot: bool
    runner_up: str | None
    order: list[str]
    """All that are fit, cheapest first, standby ones last."""


def choose_plainly(
    nodes: Sequence[Node], wanted: Wanted, home: Home, now: float, rng: Random, hold_s: float
) -> Plain | Hold:
    costs = {node.name: _cost(node, wanted, home, now) for node in nodes if _fit(node, now)}
    usual = sorted([node for node in nodes if node.name in costs and not node.standby], key=lambda n: costs[n.name])
    spare = sorted([node for node in nodes if node.name in costs and node.standby], key=lambda n: costs[n.name])
    order = usual + spare
    if not order:
        open_to = [node for node in nodes if not node.draining and node.breaker.not_before <= now]
        least_bad = min(open_to, key=_badness, default=None)
        return Plain(least_bad.name if least_bad else None, "least-bad" if least_bad else "none", False, None, [])
    best = order[0]
    hot = _hot(best, wanted, now)
    if hot and hold_s >= LEAST_HOLD_S and all(_hot(node, wanted, now) for node in order):
        return Hold(now + min(hold_s, MAX_HOLD_S))
    chosen, reason = best, "standby"
    if usual:
        chosen, reason = _within(home, usual, nodes, costs)
        chosen, reason = _drawn(chosen, reason, usual, costs, wanted, rng)
    names = [node.name for node in order]
    return Plain(chosen.name, reason, hot, next((name for name in names if name != chosen.name), None), names)


def _within(home: Home, usual: list[Node], nodes: Sequence[Node], costs: dict[str, float]) -> tuple[Node, str]:
    best = usual[0]
    region = home.region
    if region is not None and all(node.region != region for node in usual):
        regions = {node.region for node in nodes if not node.standby}
        region = min(regions, key=lambda name: home.ranks.get(name, len(home.ranks)))
    at_home = next((node for node in usual if node.region == region), None)
    if at_home is None:
        if home.region is None and best.region == next(iter(home.ranks), None):
            return best, "pinned" if home.step_s else "home"
        return best, "failover"
    if costs[at_home.name] - costs[best.name] <= max(GAIN_S, GAIN_SHARE * costs[at_home.name]):
        return at_home, "home"
    return best, "faster"


def _drawn(
    chosen: Node, reason: str, usual: list[Node], costs: dict[str, float], wanted: Wanted, rng: Random
) -> tuple[Node, str]:
    best, region = costs[chosen.name], chosen.region
    near = [node for node in usual if costs[node.name] <= best + EQUAL_SHARE * best]
    draws = (near[int(rng.random() * len(near))] for _ in count())
    chosen = chosen if len(near) == 1 else next(node for node in draws if node.region == region)
    if wanted.sticky is not None and chosen.slot != wanted.sticky:
        most = best + max(AFFINITY_S, AFFINITY_SHARE * best)
        kept = next((node for node in usual if node.slot == wanted.sticky and costs[node.name] <= most), None)
        if kept is not None:
            return kept, "session"
    return chosen, reason


def _fit(node: Node, now: float) -> bool:
    return node.ready and not node.draining and node.breaker.admits(now)


def _cost(node: Node, wanted: Wanted, home: Home, now: float) -> float:
    cost = node.outlook.cost(now, wanted.to_compute(node.slot), doubted=True)
    if node.outlook.rtt.srtt is None:
        cost += UNMEASURED_S * home.ranks.get(node.region, len(home.ranks))
    return cost + home.step_s * home.ranks.get(node.region, 0)


def _hot(node: Node, wanted: Wanted, now: float) -> bool:
    return node.outlook.load.hot(now, wanted.to_compute(node.slot))


def _badness(node: Node) -> tuple[bool, bool, float]:
    srtt = node.outlook.rtt.srtt
    return (not node.ready, node.standby, UNMEASURED_S if srtt is None else srtt)
