from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.choose import MAX_HOLD_S, Hold, Wanted, choose
from edgeproxy.routing.home import Home
from edgeproxy.routing.load import Occupancy
from tests.routing.fleet import Node, decided, healthy, home, levels, names, node, tried

SHORT = Wanted(tokens=20.0)


def busy(one: Node, tokens: int, now: float = 0.0, *, waiting: int = 0, free_tokens: int = 100_000) -> Node:
    """It reports a queue of so many prompt tokens; at the prior pace each takes 94 us."""
    one.outlook.reported(Occupancy(1, waiting, tokens, free_tokens), now)
    return one


def test_the_order_is_by_forecast() -> None:
    nodes = [node("f", "far", 0.2), node("m", "mid", 0.08), node("n", "near", 0.01)]
    decision = decided(choose(nodes, SHORT, home(far=0.2, mid=0.08, near=0.01), 0, Random(1)))
    assert names(tried(decision)) == ["n", "m", "f"]
    assert (decision.reason, healthy(decision), decision.hot) == ("home", 3, False)
    option, runner_up = decision.noted().options()
    assert option is not None and runner_up is not None
    assert option.node.name == "n" and runner_up.node.name == "m"
    forecast = option.forecast
    assert abs(forecast.network - 0.01) < 0.001 and forecast.queue == 0
    assert abs(forecast.total - nodes[2].outlook.cost(0, 20.0)) < 1e-9


def test_a_loaded_near_region_loses_to_an_idle_far_one_when_the_forecast_says_so() -> None:
    near, far = node("n", "near", 0.005), node("f", "far", 0.045)
    rule = home(near=0.005, far=0.045)
    for tokens, expected in ((100, "n"), (2000, "f")):  # 9 ms and 188 ms of prompts ahead, 40 ms of distance
        decision = decided(choose([busy(near, tokens), far], SHORT, rule, 0.005, Random(1)))
        assert decision.first is not None and decision.first.name == expected
    assert decision.reason == "faster"


def test_home_is_not_left_for_a_gain_within_the_noise() -> None:
    near, far = node("n", "near", 0.040), node("f", "far", 0.045)
    rule = home(near=0.040, far=0.045)
    busy(near, 150)  # 14 ms of queue: the far one would be 9 ms faster
    decision = decided(choose([near, far], SHORT, rule, 0.0, Random(1)))
    assert (decision.first, decision.reason) == (near, "home")


def test_what_a_node_holds_of_the_prompt_is_worth_its_distance() -> None:
    near, far = node("n", "near", 0.005, slot=0), node("f", "far", 0.045, slot=1)
    rule = home(near=0.005, far=0.045)
    for prompt, expected in ((200.0, near), (4000.0, far)):  # 94 us for each token
        wanted = Wanted(tokens=prompt, levels=levels({1: prompt - 16}))
        assert decided(choose([near, far], wanted, rule, 0.0, Random(1))).first is expected


def test_within_a_region_the_least_busy_comes_first() -> None:
    nodes = [busy(node(name, "r", 0.01), tokens) for name, tokens in (("a", 900), ("b", 0), ("c", 400))]
    assert names(tried(decided(choose(nodes, SHORT, home(r=0.01), 0.01, Random(1))), 0.01)) == ["b", "c", "a"]


def test_near_equals_are_shared_out() -> None:
    nodes, rng = [node(name, "r", 0.0100 + 0.0002 * i) for i, name in enumerate("abcd")], Random(7)
    first = Counter(tried(decided(choose(nodes, SHORT, home(r=0.01), 0, rng)))[0].name for _ in range(4000))
    assert all(800 < first[name] < 1200 for name in "abcd")


def test_a_hundred_requests_of_one_moment_do_not_herd() -> None:
    """Reports stand still meanwhile: only our own sends tell that a node fills up."""
    nodes = [node(f"{region}{i}", region, rtt) for region, rtt in (("a", 0.010), ("b", 0.030)) for i in range(4)]
    for one in nodes:
        busy(one, 0)
    wanted, rule, rng = Wanted(tokens=300.0), home(a=0.01, b=0.03), Random(3)
    sent = Counter[str]()
    for _ in range(100):
        first = decided(choose(nodes, wanted, rule, 0.0, rng)).first
        assert first is not None
        first.outlook.sent(0.0, 300.0)
        sent[first.name] += 1
    assert max(sent.values()) <= 20 and min(sent.values()) >= 8, sent
    # 20 ms of distance are less than one prompt of 28 ms; the near ones take their share of that more.
    assert sum(count for name, count in sent.items() if name[0] == "a") >= 50


def test_a_session_stays_while_that_costs_little() -> None:
    kept, other = node("k", "r", 0.012, slot=1), node("o", "r", 0.005, slot=2)
    rule, rng = home(r=0.005), Random(1)
    decision = decided(choose([kept, other], SHORT._replace(sticky=1), rule, 0.0, rng))
    assert (decision.first, decision.reason) == (kept, "session")
    busy(kept, 400)  # 38 ms
    assert decided(choose([kept, other], SHORT._replace(sticky=1), rule, 0.0, rng)).first is other
    kept.ready = False
    assert decided(choose([kept, other], SHORT._replace(sticky=1), rule, 0.0, rng)).first is other


def test_where_all_are_hot_the_request_is_held_and_then_goes_to_the_least_queue() -> None:
    nodes = [busy(node("a", "r", 0.01), 9000, waiting=2), busy(node("b", "r", 0.01), 5000, waiting=1)]
    rule, rng = home(r=0.01), Random(1)
    held = choose(nodes, SHORT, rule, 0.01, rng, hold_s=0.1)
    assert held == Hold(0.11)
    assert choose(nodes, SHORT, rule, 0.01, rng, hold_s=9.0) == Hold(0.01 + MAX_HOLD_S)
    decision = decided(choose(nodes, SHORT, rule, 0.01, rng))
    assert decision.first is nodes[1] and decision.hot
    nodes.append(node("c", "r", 0.05))
    decision = decided(choose(nodes, SHORT, rule, 0.01, rng, hold_s=9.0))
    assert decision.first is nodes[2] and not decision.hot


def test_where_home_cannot_serve_the_request_the_next_region_is_home_for_it() -> None:
    spare, near, far = node("s", "spare", 0.001), node("n", "near", 0.010), node("f", "far", 0.015)
    spare.standby = True
    rule = home(spare=0.001, near=0.010, far=0.015)
    for nodes in ([spare, near, far], [near, far]):
        decision = decided(choose(nodes, SHORT, rule, 0.0, Random(1)))
        assert (decision.first, decision.reason) == (near, "home")
        busy(near, 80)  # 8 ms: no clear gain
        assert decided(choose(nodes, SHORT, rule, 0.0, Random(1))).first is near
        near.ready = False
        assert decided(choose(nodes, SHORT, rule, 0.0, Random(1))).reason == "failover"
        near.ready = True
        busy(near, 0)


@given(st.floats(0.001, 0.05), st.floats(0.0, 1.0) | st.floats(0.0, 1e-15))
def test_a_hold_ends_later_than_it_began_however_late_it_is_on_the_clock(now: float, left: float) -> None:
    nodes = [busy(node("a", "r", 0.01), 9000, waiting=2), busy(node("b", "r", 0.01), 5000, waiting=1)]
    found = choose(nodes, SHORT, home(r=0.01), now, Random(1), hold_s=left)
    assert not isinstance(found, Hold) or found.until > now


def test_a_node_without_memory_for_the_prompt_is_hot() -> None:
    small = busy(node("s", "r", 0.01), 0, free_tokens=100)
    assert not small.outlook.load.hot(0.0, 99.0)
    assert small.outlook.load.hot(0.0, 101.0)


def test_unfit_nodes_are_a_last_resort_and_the_reason_says_so() -> None:
    starting, tripped, held, well = (node(name, "r", 0.01) for name in "sthw")
    starting.ready = False
    well.region = "q"
    for _ in range(5):
        tripped.breaker.failed(0)
    held.breaker.hold_off(9, now=0)
    nodes, rule = [starting, tripped, held, well], home(r=0.01, q=0.1)
    decision = decided(choose(nodes, SHORT, rule, 0, Random(1)))
    assert names(tried(decision)) == ["w", "t", "s"]
    assert (healthy(decision), decision.reason) == (1, "failover")
    worst = decided(choose(nodes[:3], SHORT, rule, 0, Random(1)))
    assert names(tried(worst)) == ["t", "s"]
    assert (healthy(worst), worst.reason) == (0, "least-bad")
    assert decided(choose([held], SHORT, rule, 0, Random(1))).reason == "none"  # it asked for a pause
    assert tried(decided(choose(nodes, SHORT, rule, 9.5, Random(1))), 9.5)[0].name in "th"


def test_a_draining_node_gets_nothing_not_even_as_a_last_resort() -> None:
    leaving, other = node("l", "r", 0.01), node("o", "r", 0.2)
    leaving.draining = True
    assert names(tried(decided(choose([leaving, other], SHORT, home(r=0.01), 0, Random(1))))) == ["o"]
    assert decided(choose([leaving], SHORT, home(r=0.01), 0, Random(1))).reason == "none"


def test_standby_nodes_serve_only_while_no_other_is_fit() -> None:
    spare, usual = node("s", "r", 0.001), busy(node("u", "r", 0.2), 1000)
    spare.standby = True
    assert names(tried(decided(choose([spare, usual], SHORT, home(r=0.01), 0, Random(1))))) == ["u", "s"]
    usual.ready = False
    decision = decided(choose([spare, usual], SHORT, home(r=0.01), 0, Random(1)))
    assert (names(tried(decision)), decision.reason) == (["s", "u"], "standby")


def test_no_node_at_all_is_said_and_not_raised() -> None:
    nothing: list[Node] = []
    decision = decided(choose(nothing, SHORT, home(r=0.01), 0, Random(1)))
    assert (tried(decision), decision.reason, decision.noted().options()) == ((), "none", (None, None))


def test_a_pinned_request_goes_where_its_client_said_and_the_reason_says_so() -> None:
    nodes = [node("near", "near", 0.001), node("far", "far", 0.1)]
    pinned = Home(("far", "near"), strict=True)
    decision = decided(choose(nodes, SHORT, pinned, 0, Random(1)))
    assert (names(tried(decision)), decision.reason) == (["far", "near"], "pinned")
    nodes[1].ready = False
    decision = decided(choose(nodes, SHORT, pinned, 0, Random(1)))
    assert (names(tried(decision)), decision.reason) == (["near", "far"], "failover")


def test_unmeasured_regions_come_last_and_before_any_measurement_the_operators_order_holds() -> None:
    nodes = [node("a", "a"), node("b", "b"), node("c", "c")]
    decision = decided(choose(nodes, SHORT, home(a=None, b=None, c=None), 0, Random(1)))
    assert (names(tried(decision)), decision.reason) == (["a", "b", "c"], "home")
    nodes = [node("a", "a"), node("b", "b", 0.2), node("c", "c", 0.1)]
    assert names(tried(decided(choose(nodes, SHORT, home(a=None, b=0.2, c=0.1), 0, Random(1))))) == ["c", "b", "a"]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("xyz"), st.booleans(), st.integers(0, 3), st.booleans()), min_size=1, max_size=9
    ),
    st.randoms(),
)
def test_every_node_stands_in_the_order_once_and_no_unfit_one_before_a_fit_one(
    shapes: list[tuple[str, bool, int, bool]], rng: Random
) -> None:
    distances = {"x": 0.1, "y": 0.2, "z": 0.3}
    nodes = []
    for i, (region, ready, load, standby) in enumerate(shapes):
        one = busy(node(str(i), region, distances[region], slot=i), load * 500)
        one.ready, one.standby = ready, standby
        nodes.append(one)
    decision = decided(choose(nodes, SHORT, home(**distances), 0.3, rng))
    order = tried(decision, 0.3)
    assert sorted(names(order), key=int) == names(tuple(nodes))
    fit = [one.ready for one in order]
    assert fit == sorted(fit, reverse=True)
    assert healthy(decision, 0.3) == sum(fit)
    assert [one.standby for one in order[: sum(fit)]] == sorted(one.standby for one in nodes if one.ready)


def test_what_every_node_finds_cached_is_not_computed_anywhere() -> None:
    wanted = Wanted(tokens=40.0, levels=levels({1: 32.0}), usual=16.0)
    assert (wanted.to_compute(0), wanted.to_compute(1)) == (24.0, 8.0)
    assert Wanted(tokens=40.0, usual=64.0).to_compute(0) == 1.0
