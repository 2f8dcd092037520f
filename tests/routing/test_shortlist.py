from __future__ import annotations

from random import Random

from edgeproxy.routing.choose import Wanted, choose
from edgeproxy.routing.load import Occupancy
from edgeproxy.routing.rtt import UNMEASURED_S
from edgeproxy.routing.shortlist import ORDER_S, SUMMARY_S, WHOLE, Shortlist
from tests.routing.fleet import Node, decided, home, levels, node

RTTS = {f"r{i}": 0.005 + 0.015 * i for i in range(10)}
HOME = home(**RTTS)


def fleet(each: int = 100) -> list[Node]:
    return [
        node(f"{region}-{i}", region, rtt, slot=number * each + i)
        for number, (region, rtt) in enumerate(RTTS.items())
        for i in range(each)
    ]


def settled(nodes: list[Node]) -> Shortlist[Node]:
    found, rng = Shortlist(nodes), Random(1)
    for _ in RTTS:
        found.pick(Wanted(1.0), HOME, 0.0, rng)
    return found


def test_a_small_fleet_is_looked_at_whole() -> None:
    nodes = fleet(each=WHOLE // len(RTTS))
    assert Shortlist(nodes).pick(Wanted(1.0), HOME, 0.0, Random(1))[0] == nodes


def test_of_a_small_fleet_the_nearest_come_first_as_they_are_now() -> None:
    first, second, unmeasured = node("first", "a", 0.010), node("second", "b", 0.020), node("unmeasured", "c")
    found = Shortlist([unmeasured, second, first])
    picked, far = found.pick(Wanted(1.0), HOME, 0.0, Random(1))
    assert picked == [first, second, unmeasured]
    assert far == [first.outlook.rtt.network, second.outlook.rtt.network, UNMEASURED_S]
    for _ in range(40):
        first.outlook.rtt.probe(0.200, 0.0)
    assert found.pick(Wanted(1.0), HOME, ORDER_S, Random(1))[0] == [second, first, unmeasured]


def test_the_choice_within_the_best_two_regions_is_the_choice_of_all() -> None:
    rng, nodes = Random(2), fleet()
    for one in nodes:
        one.outlook.reported(Occupancy(1, 0, rng.randrange(200, 4000)), 0.0)
    found = settled(nodes)
    wanted = Wanted(100.0)
    picked, _ = found.pick(wanted, HOME, 0.01, rng)
    assert len(picked) == 200
    chosen, best = decided(choose(picked, wanted, HOME, 0.01, rng)), decided(choose(nodes, wanted, HOME, 0.01, rng))
    taken, other = chosen.noted().options()[0], best.noted().options()[0]
    assert taken is not None and other is not None
    assert taken.forecast.total <= 1.2 * other.forecast.total + 0.010


def test_a_region_that_fills_up_gives_way_when_its_summary_is_made_again() -> None:
    nodes = fleet()
    found = settled(nodes)
    for one in nodes:
        if one.region in ("r0", "r1", "r2"):
            one.outlook.reported(Occupancy(1, 0, 20_000), 1.0)
    for _ in RTTS:
        found.pick(Wanted(1.0), HOME, 1.0 + SUMMARY_S, Random(1))
    regions = {one.region for one in found.pick(Wanted(1.0), HOME, 1.0 + SUMMARY_S, Random(1))[0]}
    assert regions == {"r0", "r3"}  # the home region is always looked at: whether to leave it is the choice's business


def test_nodes_that_hold_the_prompt_and_the_sessions_node_are_always_looked_at() -> None:
    nodes = fleet()
    wanted = Wanted(5000.0, levels=levels({950: 4900.0}), sticky=870)
    picked, _ = settled(nodes).pick(wanted, HOME, 0.0, Random(1))
    assert {950, 870} <= {one.slot for one in picked}
    assert decided(choose(picked, wanted, HOME, 0.0, Random(1))).first is nodes[950]
