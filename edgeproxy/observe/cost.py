"""What 1,000 tokens cost, by model and region: the price of the nodes' time over the last hour, by the tokens that they
wrote in it. Idle time is part of it, so a fleet that is too large for its traffic is seen to be dear.

A node that serves several models spends its time on them as its region's tokens are spread over them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from edgeproxy.observe.fleet import PATTERN_MODEL, NodeView

SLICE_S = 60
SLICES = 60

Tokens = Mapping[tuple[str, str], int]
"""(model, region) -> tokens written."""


class Window(NamedTuple):
    seconds: float
    tokens: Tokens


class Produced:
    """Tokens of the last hour, by the minute. `since`: Unix seconds of the proxy's start."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._slices: deque[tuple[float, Counter[tuple[str, str]]]] = deque(maxlen=SLICES)

    def add(self, model: str, region: str, tokens: int, now: float) -> None:
        """`now`: Unix seconds; a clock that goes back writes into the newest minute."""
        start = now // SLICE_S * SLICE_S
        if not self._slices or self._slices[-1][0] < start:
            self._slices.append((start, Counter()))
        self._slices[-1][1][model, region] += tokens

    def window(self, now: float) -> Window:
        """Of whole minutes and the one under way: an hour at most, and no time before the proxy's start."""
        first = (now // SLICE_S - SLICES + 1) * SLICE_S
        found: Counter[tuple[str, str]] = Counter()
        for start, tokens in self._slices:
            if start >= first:
                found.update(tokens)
        return Window(max(now - max(first, self._since), 0.0), found)


def costs(nodes: Sequence[NodeView], window: Window) -> dict[tuple[str, str], float]:
    """(model, region) -> cost of 1,000 tokens, in the currency of the prices. Absent where no token was written, and
    where a node that serves the model there has no price: half of a cost would be taken for the whole."""
    spent: dict[tuple[str, str], float] = {}
    unknown: set[tuple[str, str]] = set()
    for node in nodes:
        served = {key: count for key, count in window.tokens.items() if count and _serves(node, *key)}
        if node.price_per_hour is None:
            unknown |= served.keys()
            continue
        total = node.price_per_hour * window.seconds / 3600
        for key, count in served.items():
            spent[key] = spent.get(key, 0.0) + total * count / sum(served.values())
    return {key: 1000 * cost / window.tokens[key] for key, cost in spent.items() if key not in unknown}


def _serves(node: NodeView, model: str, region: str) -> bool:
    patterns = [name[:-1] for name in node.models if name.endswith("*")]
    named = model in node.models or any(model.startswith(beginning) for beginning in patterns)
    return node.region == region and (bool(patterns) if model == PATTERN_MODEL else named)


def cost_families(nodes: Sequence[NodeView], window: Window) -> Iterable[Metric]:
    price = GaugeMetricFamily(
        "edgeproxy_node_price_per_hour", "Of a node, as the configuration says", labels=["node", "region"]
    )
    for node in nodes:
        if node.price_per_hour is not None:
            price.add_metric([node.name, node.region], node.price_per_hour)
    cost = GaugeMetricFamily(
        "edgeproxy_cost_per_1k_tokens", "Nodes' time by tokens written, last hour", labels=["model", "region"]
    )
    for place, value in costs(nodes, window).items():
        cost.add_metric(place, value)
    return price, cost
