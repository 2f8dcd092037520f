"""Few nodes are looked at; the choice is as if all had been."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.choose import Decision, Hold, Wanted, choose
from edgeproxy.routing.forecast import Timings
from edgeproxy.routing.home import Home
from edgeproxy.routing.load import Occupancy
from edgeproxy.routing.shortlist import Shortlist
from tests.routing.fleet import Node, healthy, levels, node
from tests.routing.plain_choice import Plain, choose_plainly

NOW = 100.0
REGIONS = {"a": 0.002, "b": 0.012, "c": 0.045, "d": 0.140}


class Lived(Random):
    """A node's past, drawn from a seed: hypothesis shrinks the number, and with it what has happened."""

    def node(self, index: int) -> Node:
        region = self.choice(list(REGIONS))
        rtt = None if self.random() < 0.1 else REGIONS[region] * self.uniform(0.9, 1.2)
        made = node(f"n{index}", region, rtt, slot=index)
        made.ready, made.standby = self.random() < 0.9, self.random() < 0.1
        made.draining = self.random() < 0.05
        self._learnt(made)
        if self.random() < 0.4:
            free = self.choice((0, 100, 100_000))
            told = Occupancy(self.randrange(8), self.choice((0, 0, 0, 2)), self.choice((0, 0, 200, 4000)), free)
            made.outlook.reported(told, NOW - self.choice((0.0, 1.0, 30.0)), self.choice((0.0, 2000.0)))
        for _ in range(self.choice((0, 0, 1, 9))):
            made.outlook.sent(NOW - self.random() / 10, self.choice((10.0, 500.0)))
        if self.random() < 0.1:
            made.breaker.hold_off(5.0, NOW - self.choice((1.0, 9.0)))
        for _ in range(self.choice((0, 0, 0, 5))):
            made.breaker.failed(NOW - 0.5)
        return made

    def _learnt(self, made: Node) -> None:
        for _ in range(self.choice((0, 1, 5))):
            sent = made.outlook.sent(NOW - 5.0, self.choice((20.0, 300.0)))
            work = self.uniform(0.002, 0.3)
            made.outlook.began(sent, sent.tokens, Timings(work + 0.01, self.choice((None, 0.01)), work))
            made.outlook.load.ended(sent, NOW - 4.0, served=True)

    def home(self) -> Home:
        if self.random() < 0.1:
            return Home(self.sample(list(REGIONS), 3), strict=True)
        found = Home(REGIONS)
        if self.random() < 0.9:
            found.update({name: rtt for name, rtt in REGIONS.items() if self.random() < 0.9})
        return found

    def wanted(self, nodes: Sequence[Node]) -> Wanted:
        tokens = self.choice((1.0, 30.0, 400.0, 4000.0))
        holders = self.sample(nodes, self.choice((0, 0, min(2, len(nodes)), len(nodes))))
        cached = {one.slot: self.random() * 1.1 * tokens for one in holders}
        sticky = self.choice((None, self.choice(nodes).slot, 10_000))
        return Wanted(tokens, levels(cached), sticky, self.choice((0.0, 10.0)))


@settings(deadline=None, max_examples=400)
@given(st.integers(0, 2**32), st.integers(1, 24))
def test_the_choice_is_that_of_the_plain_rules(seed: int, count: int) -> None:
    lived = Lived(seed)
    nodes: Sequence[Node] = [lived.node(index) for index in range(count)]
    home, wanted, hold_s = lived.home(), lived.wanted(nodes), lived.choice((0.0, 0.0001, 0.1))
    far: Sequence[float] = ()
    if lived.random() < 0.7:  # else far ones may come first
        nodes, far = Shortlist(nodes).pick(wanted, home, NOW, lived)
    ours, theirs = Random(seed), Random(seed)
    found = choose(nodes, wanted, home, NOW, ours, hold_s, far)
    plain = choose_plainly(nodes, wanted, home, NOW, theirs, hold_s)
    assert ours.getstate() == theirs.getstate()
    if isinstance(plain, Hold) or isinstance(found, Hold):
        assert found == plain
        return
    assert told(found) == plain._replace(order=[])
    fit, _ = found.others(NOW)
    assert [one.name for one in fit] == [name for name in plain.order if name != plain.first]
    assert healthy(found, NOW) == len(plain.order)


def told(decision: Decision[Node]) -> Plain:
    first, second = decision.noted().options()
    assert (None if first is None else first.node) is decision.first
    return Plain(
        None if decision.first is None else decision.first.name,
        decision.reason,
        decision.hot,
        None if second is None else second.node.name,
        [],
    )


def test_nodes_that_are_too_far_for_the_prompt_are_not_looked_at() -> None:
    """What the saving rests on: else the property above would hold of a choice that looks at all."""
    near = [node(f"near{index}", "a", 0.002, slot=index) for index in range(3)]
    far = [Unseen(node(f"far{index}", "d", 0.140, slot=3 + index)) for index in range(20)]
    home = Home(REGIONS)
    home.update(REGIONS)
    rng = Random(1)
    some_hold: tuple[dict[int, float], ...] = ({}, {far[7].slot: 49.0})
    for cached in some_hold:
        wanted = Wanted(50.0, levels(cached))
        nodes, distances = Shortlist([*far, *near]).pick(wanted, home, NOW, rng)
        for one in far:
            one.looked_at = False
        found = choose(nodes, wanted, home, NOW, rng, far=distances)
        assert isinstance(found, Decision)
        assert found.first in near and sum(one.looked_at for one in far) <= 1  # it tells that the others are too far


def test_a_sessions_node_behind_the_runner_up_is_kept_while_its_price_is_right() -> None:
    nodes = [node(f"n{index}", "a", rtt, slot=index) for index, rtt in enumerate((0.002, 0.003, 0.009, 0.020))]
    home, rng = Home(REGIONS), Random(1)
    home.update(REGIONS)
    for sticky, reason in ((2, "session"), (3, "home")):
        wanted = Wanted(50.0, sticky=sticky)
        picked, distances = Shortlist(nodes).pick(wanted, home, NOW, rng)
        found = choose(picked, wanted, home, NOW, rng, far=distances)
        assert isinstance(found, Decision) and found.reason == reason
        assert (found.first is nodes[sticky]) == (reason == "session")


class Unseen(Node):
    """Notes whether anybody asks for its costs."""

    def __init__(self, like: Node) -> None:
        super().__init__(like.name, like.region, like.slot, outlook=like.outlook)
        self.looked_at = False

    def __getattribute__(self, name: str) -> object:
        if name == "outlook":
            object.__setattr__(self, "looked_at", True)
        return super().__getattribute__(name)
