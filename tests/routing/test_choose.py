from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.breaker import Breaker
from edgeproxy.routing.choose import Home, choose
from edgeproxy.routing.rtt import RttEstimator


@dataclass
class Node:
    name: str
    region: str
    ready: bool = True
    in_flight: int = 0
    rtt: RttEstimator = field(default_factory=RttEstimator)
    breaker: Breaker = field(default_factory=Breaker)


def home(**minimums: float | None) -> Home:
    found = Home(minimums)
    found.update(minimums)
    return found


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


def test_the_order_is_home_then_the_nearest() -> None:
    nodes = [Node("f", "far"), Node("m", "mid"), Node("n", "near")]
    nodes[2].rtt.probe(0.010, 0)
    decision = choose(nodes, home(far=0.2, mid=0.08, near=0.01), 0, Random(1))
    assert names(decision.candidates) == ["n", "m", "f"]
    assert (decision.reason, decision.healthy) == ("home", 3)
    assert decision.terms is not None
    assert (decision.terms.region, decision.terms.network_s) == ("near", 0.020)


def test_within_a_region_the_least_busy_comes_first() -> None:
    nodes = [Node("a", "r", in_flight=2), Node("b", "r", in_flight=0), Node("c", "r", in_flight=1)]
    assert names(choose(nodes, home(r=0.01), 0, Random(1)).candidates) == ["b", "c", "a"]


def test_equals_are_shared_out() -> None:
    nodes, rng = [Node(name, "r") for name in "abcd"], Random(7)
    first = Counter(choose(nodes, home(r=0.01), 0, rng).candidates[0].name for _ in range(4000))
    assert all(800 < first[name] < 1200 for name in "abcd")


def test_a_busy_home_is_not_left_for_an_idle_region() -> None:
    nodes = [Node("n", "near", in_flight=50), Node("f", "far")]
    assert names(choose(nodes, home(near=0.01, far=0.2), 0, Random(1)).candidates) == ["n", "f"]


def test_a_cost_decides_within_the_region() -> None:
    nodes = [Node("a", "r"), Node("b", "r", in_flight=9)]
    found = choose(nodes, home(r=0.01), 0, Random(1), cost=lambda node: -node.in_flight)
    assert names(found.candidates) == ["b", "a"]


def test_unfit_nodes_are_a_last_resort_and_the_reason_says_so() -> None:
    starting, tripped, held, well = Node("s", "r", ready=False), Node("t", "r"), Node("h", "r"), Node("w", "q")
    for _ in range(5):
        tripped.breaker.failed(0)
    held.breaker.hold_off(9, now=0)
    nodes, rule = [starting, tripped, held, well], home(r=0.01, q=0.1)
    decision = choose(nodes, rule, 0, Random(1))
    assert names(decision.candidates) == ["w", "t", "h", "s"]
    assert (decision.healthy, decision.reason) == (1, "failover")
    worst = choose(nodes[:3], rule, 0, Random(1))
    assert names(worst.candidates) == ["t", "h", "s"]
    assert (worst.healthy, worst.reason) == (0, "least-bad")
    assert choose(nodes, rule, 9.5, Random(1)).candidates[0].name in "th"


def test_no_node_at_all_is_said_and_not_raised() -> None:
    nothing: list[Node] = []
    decision = choose(nothing, home(r=0.01), 0, Random(1))
    assert (decision.candidates, decision.reason, decision.terms) == ((), "none", None)


def test_unmeasured_regions_come_last_and_before_any_measurement_the_operators_order_holds() -> None:
    nodes = [Node("a", "a"), Node("b", "b"), Node("c", "c")]
    assert names(choose(nodes, home(a=None, b=None, c=None), 0, Random(1)).candidates) == ["a", "b", "c"]
    assert names(choose(nodes, home(a=None, b=0.2, c=0.1), 0, Random(1)).candidates) == ["c", "b", "a"]


def test_home_moves_only_for_ten_milliseconds_and_a_third() -> None:
    for old, new, moves in [
        (0.060, 0.041, False),  # 19 ms nearer, but more than two thirds
        (0.024, 0.015, False),  # less than two thirds, but only 9 ms nearer
        (0.060, 0.039, True),
        (0.300, 0.199, True),
    ]:
        found = home(a=old, b=None)
        found.update({"a": old, "b": new})
        assert found.region == ("b" if moves else "a"), (old, new)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.040, 0.049), st.floats(0.040, 0.049)), min_size=1))
def test_noise_between_near_equals_never_moves_home(rounds: list[tuple[float, float]]) -> None:
    found = home(a=0.040, b=0.049)
    for a, b in rounds:
        found.update({"a": a, "b": b})
        assert found.region == "a"
        assert found.ranks == {"a": 0, "b": 1}


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.booleans(), st.integers(0, 3)), min_size=1, max_size=9), st.randoms()
)
def test_every_node_stands_in_the_order_once_and_no_unfit_one_before_a_fit_one(
    shapes: list[tuple[str, bool, int]], rng: Random
) -> None:
    nodes = [Node(str(i), region, ready, load) for i, (region, ready, load) in enumerate(shapes)]
    decision = choose(nodes, home(x=0.1, y=0.2, z=0.3), 0, rng)
    assert sorted(names(decision.candidates), key=int) == names(tuple(nodes))
    fit = [node.ready for node in decision.candidates]
    assert fit == sorted(fit, reverse=True)
    assert decision.healthy == sum(fit)
    healthy = [(node.region, node.in_flight) for node in decision.candidates[: decision.healthy]]
    assert healthy == sorted(healthy)
