"""What users of other routers complained of in their choice of a node, replayed on the pure rooms.

Covered elsewhere, by the same properties:
    test_choose.py         llm-d-router#298: a burst on stale metrics herds (`a_hundred_requests_of_one_moment...`)
    test_home.py           tailscale#8603, #10528, #16254: home flaps between close regions
    tests/sim/test_run.py  llm-d-router#298 again, a whole fleet (`stale_reports...`, `a_herd_is_spread...`)
    tests/gateway          the rest of the table: failover, streams, breakers, probes
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from edgeproxy.routing.choose import Wanted, choose
from edgeproxy.routing.forecast import Timings
from edgeproxy.routing.load import Occupancy
from edgeproxy.routing.prefix import PrefixView, chain
from tests.routing.fleet import Node, decided, depths, home, levels, node
from tests.sim.small import plan, poisson, simulate

PROMPT = Random(1).randbytes(4096)


def serve(one: Node, first_s: float, whole_s: float, times: int = 40) -> float:
    """So many answers, one after the other; returns when the last was over."""
    now = 0.0
    for _ in range(times):
        sent = one.outlook.sent(now, 50.0)
        one.outlook.began(sent, 50.0, Timings(first_s, 0.0, first_s - 0.001))
        now += whole_s
        one.outlook.load.ended(sent, now, served=True)
        one.outlook.reported(Occupancy(0, 0, 0), now)
    return now


@pytest.mark.parametrize(("quick_s", "slow_s"), [(60.0, 0.6), (0.2, 60.0)])
def test_only_the_first_token_counts_however_long_answers_are(quick_s: float, slow_s: float) -> None:
    """litellm#40202: the time to the first token was divided by the length of the answer, so that a slow region with
    long answers came first; #3574: whole answers were timed, so that a quick one with long answers came last."""
    nodes = [node("slow", "slow", 0.005, slot=0), node("quick", "quick", 0.005, slot=1)]
    now = max(serve(nodes[0], 0.5, slow_s), serve(nodes[1], 0.1, quick_s))
    for one in nodes:
        one.outlook.reported(Occupancy(0, 0, 0), now)
    first = decided(choose(nodes, Wanted(50.0), home(slow=0.005, quick=0.005), now, Random(1))).first
    assert first is nodes[1]


def test_a_busy_hour_at_home_sends_nobody_round_the_world() -> None:
    """litellm#1393: at peak the choice fell on Australia, whose few answers had been quick."""
    near, far = node("near", "near", 0.010, slot=0), node("far", "far", 0.280, slot=1)
    now = max(serve(near, 0.15, 1.0), serve(far, 0.30, 1.0))
    near.outlook.reported(Occupancy(12, 0, 100), now)
    far.outlook.reported(Occupancy(0, 0, 0), now)
    found = [
        decided(choose([near, far], Wanted(50.0), home(near=0.010, far=0.280), now, Random(seed))) for seed in range(50)
    ]
    assert all(decision.first is near for decision in found)


@pytest.mark.parametrize("rate", [4.0, 16.0])
def test_choosing_is_no_worse_than_dealing_out(rate: float) -> None:
    """litellm#873: latency-based routing was slower than a random shuffle."""
    means = {
        policy: simulate(policy, plan(regions=3), poisson(rate, 600, 4, shared=20)).summary().ttft_mean_s
        for policy in ("edgeproxy", "round-robin", "least-load")
    }
    assert means["edgeproxy"] <= 1.02 * min(means.values())


def test_whom_nothing_tells_apart_shares_the_work() -> None:
    """sglang#14532: ties went to the worker with the smallest tree, which then had the longest queue, for ever."""
    nodes = [node(f"n{slot}", "r", 0.010, slot=slot) for slot in range(4)]
    drawn = Counter(
        decided(choose(nodes, Wanted(100.0), home(r=0.010), 0.0, Random(seed))).first.name  # type: ignore[union-attr]
        for seed in range(400)
    )
    assert min(drawn.values()) > 60


def test_who_had_to_leave_its_node_for_once_comes_back() -> None:
    """sglang#32195: affinity was lost whenever imbalance triggered."""
    nodes = [node("a", "r", 0.010, slot=0), node("b", "r", 0.010, slot=1)]
    wanted = Wanted(1000.0, levels({0: 900.0}), sticky=0)
    nodes[0].outlook.reported(Occupancy(4, 0, 20_000), 0.0)
    nodes[1].outlook.reported(Occupancy(0, 0, 0), 0.0)
    assert decided(choose(nodes, wanted, home(r=0.010), 0.0, Random(1))).first is nodes[1]
    nodes[0].outlook.reported(Occupancy(0, 0, 0), 5.0)
    both = wanted._replace(levels=levels({0: 900.0, 1: 900.0}))  # the detour has left a copy there
    assert decided(choose(nodes, wanted, home(r=0.010), 5.0, Random(1))).first is nodes[0]
    assert decided(choose(nodes, both, home(r=0.010), 5.0, Random(1))).first is nodes[0]


def test_a_proxy_that_was_started_anew_knows_a_prompt_again_after_one_request() -> None:
    """ai-dynamo/dynamo#1056: after a restart of the router what the nodes held was forgotten, for good."""
    view = PrefixView()
    slots = [view.join(), view.join()]
    names = chain(PROMPT, 7)
    assert depths(view, names) == {}
    view.sent(slots[1], names)
    assert depths(view, names) == {slots[1]: len(names)}
