"""edgeproxy's own router: the rooms of `edgeproxy.routing` as the gateway uses them, with nothing added."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.choose import MAX_HOLD_S, Wanted, choose
from edgeproxy.routing.choose import Hold as Held
from edgeproxy.routing.forecast import Outlook, Timings
from edgeproxy.routing.home import Home
from edgeproxy.routing.load import Occupancy, Sent
from edgeproxy.routing.prefix import CHUNKS, PrefixView
from edgeproxy.routing.shortlist import Shortlist
from edgeproxy.sim.node import Report
from edgeproxy.sim.policies.base import Hold, Place, Policy, Told
from edgeproxy.sim.workload import Asked


class Upstream:
    """A node as the router knows it. Whether it is up, the edge says: all policies hear the same of that."""

    __slots__ = ("breaker", "name", "outlook", "region", "slot")
    ready = True
    draining = standby = False

    def __init__(self, name: str, region: str, slot: int) -> None:
        self.name = name
        self.region = region
        self.slot = slot
        self.breaker = Breaker()
        self.outlook = Outlook()


class Edgeproxy(Policy):
    def __init__(self, place: Place, rng: Random) -> None:
        super().__init__(place, rng)
        self._view = PrefixView()
        regions = [place.regions[region] for region in place.region_of]
        self._nodes = [Upstream(f"{region}/{node}", region, self._view.join()) for node, region in enumerate(regions)]
        self._by_slot = {upstream.slot: node for node, upstream in enumerate(self._nodes)}
        self._home = Home(place.regions)
        self._minimums: dict[str, float | None] = dict.fromkeys(place.regions)
        self._shortlist = Shortlist(self._nodes)
        self._under_way: dict[int, Sent] = {}
        """By request number."""
        self._last: tuple[int, Wanted] | None = None
        """The request asked about last, by its number."""

    def choose(self, asked: Asked, nodes: Sequence[int], now: float, waited: float) -> int | Hold:
        wanted = self._wanted(asked)
        candidates, far = self._shortlist.pick(wanted, self._home, now, self.rng)
        if len(nodes) < len(self._nodes):
            open_ = {self._nodes[node].slot for node in nodes}
            candidates = [upstream for upstream in candidates if upstream.slot in open_] or [
                self._nodes[node] for node in nodes
            ]
            far = ()
        decision = choose(candidates, wanted, self._home, now, self.rng, max(MAX_HOLD_S - waited, 0.0), far)
        if isinstance(decision, Held):
            return Hold(decision.until)
        assert decision.first is not None
        return self._by_slot[decision.first.slot]

    def sent(self, node: int, asked: Asked, now: float) -> None:
        super().sent(node, asked, now)
        upstream = self._nodes[node]
        self._under_way[asked.number] = upstream.outlook.sent(now, self._wanted(asked).to_compute(upstream.slot))
        if asked.blocks:
            self._view.sent(upstream.slot, asked.blocks)
            self._last = None

    def first(self, node: int, asked: Asked, told: Told, now: float) -> None:
        timings = Timings(told.ttft_s, told.queue_s, told.prefill_s)
        self._nodes[node].outlook.began(self._under_way[asked.number], asked.prompt - told.cached, timings)

    def ended(self, node: int, asked: Asked, now: float, *, served: bool) -> None:
        super().ended(node, asked, now, served=served)
        upstream = self._nodes[node]
        upstream.outlook.load.ended(self._under_way.pop(asked.number), now, served=served)

    def reported(self, node: int, report: Report, now: float) -> None:
        upstream = self._nodes[node]
        told = Occupancy(report.running, report.waiting, report.prefill_tokens, report.kv_spare)
        upstream.outlook.reported(told, now, report.prefill_tokens_per_s)
        # The view counts in chunks of text, a trace in blocks: one is made to be the other.
        self._view.capacity(upstream.slot, report.kv_tokens, CHUNKS[0][0] / self.place.block_tokens)

    def probed(self, node: int, rtt: float, now: float) -> None:
        upstream = self._nodes[node]
        upstream.outlook.rtt.probe(rtt, now)
        nearest = upstream.outlook.rtt.minimum(now)
        others = self._minimums[upstream.region]
        self._minimums[upstream.region] = nearest if others is None or nearest is None else min(nearest, others)
        self._home.update(self._minimums)

    def _wanted(self, asked: Asked) -> Wanted:
        if self._last is None or self._last[0] != asked.number:
            each, holders = self.place.block_tokens, self._view.holders(asked.blocks) if asked.blocks else []
            levels = [(slots, float(min(depth * each, asked.prompt - 1))) for slots, depth in holders]
            self._last = asked.number, Wanted(float(asked.prompt), levels)
        return self._last[1]
