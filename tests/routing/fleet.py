"""Nodes as the choice sees them, without anything behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.choose import Decision, Hold, Levels
from edgeproxy.routing.forecast import Outlook
from edgeproxy.routing.home import Home
from edgeproxy.routing.prefix import PrefixView, members


@dataclass
class Node:
    name: str
    region: str
    slot: int = 0
    ready: bool = True
    draining: bool = False
    standby: bool = False
    outlook: Outlook = field(default_factory=Outlook)
    breaker: Breaker = field(default_factory=Breaker)


def node(name: str, region: str, rtt_s: float | None = None, *, slot: int = 0, now: float = 0.0) -> Node:
    """With a settled round trip where one is given."""
    made = Node(name, region, slot)
    if rtt_s is not None:
        for _ in range(40):
            made.outlook.rtt.probe(rtt_s, now)
    return made


def home(**minimums: float | None) -> Home:
    found = Home(minimums)
    found.update(minimums)
    return found


def decided(found: Decision[Node] | Hold) -> Decision[Node]:
    assert isinstance(found, Decision)
    return found


def levels(held: Mapping[int, float]) -> Levels:
    """Of what each slot holds."""
    amounts = sorted({*held.values()}, reverse=True)
    return [(sum(1 << slot for slot in held if held[slot] == amount), amount) for amount in amounts]


def depths(view: PrefixView, chunks: Sequence[int]) -> dict[int, int]:
    """Slot -> how many of a prompt's chunks it holds."""
    return {slot: depth for slots, depth in view.holders(chunks) for slot in members(slots)}


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def tried(decision: Decision[Node], now: float = 0.0) -> tuple[Node, ...]:
    """Every node in the order in which they would be tried."""
    fit, last = decision.others(now)
    return () if decision.first is None else (decision.first, *fit, *last)


def healthy(decision: Decision[Node], now: float = 0.0) -> int:
    """How many of them are fit."""
    return decision.fit + len(decision.others(now)[0])
