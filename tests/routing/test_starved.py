"""A node that looked slow is tried again, also where it never answered; one that is slow is soon left alone."""

from __future__ import annotations

from random import Random

import pytest

from edgeproxy.routing.choose import Wanted, choose
from edgeproxy.routing.forecast import STARVED_S, Timings
from edgeproxy.routing.load import Occupancy
from tests.routing.fleet import Node, decided, home, node

TOKENS = 40.0
PROBED_S = 5
IDLE = Occupancy(0, 0, 0, 100_000)


def served_by(near_s: float, far_s: float, seconds: int, *, near_declares: float) -> list[str]:
    """Regions, a request a second. Far has answered once, coldly, before near was asked anything; near declares a rate,
    of a rehearsal on a busy machine."""
    near, far = node("n", "near", 0.001), node("f", "far", 0.002)
    rule, rng, picked = home(near=0.001, far=0.002), Random(1), list[str]()
    takes = {"near": near_s, "far": far_s}
    answer(far, 2 * far_s, 0.0)
    near.outlook.reported(IDLE, 0.5, near_declares)
    near.outlook.pace.suppose(far.outlook.pace)
    for now in range(1, seconds):
        if now % PROBED_S == 0:
            near.outlook.reported(IDLE, now, near_declares)
            far.outlook.reported(IDLE, now, TOKENS / far_s)
            near.outlook.probed(now)
            far.outlook.probed(now)
        chosen = decided(choose([near, far], Wanted(tokens=TOKENS), rule, now, rng)).first
        assert chosen is not None
        picked.append(chosen.region)
        answer(chosen, takes[chosen.region], now)
    return picked


def answer(one: Node, seconds: float, now: float) -> None:
    outlook = one.outlook
    sent = outlook.sent(now, TOKENS)
    outlook.began(sent, TOKENS, Timings(seconds + 0.001, 0.0, seconds))
    outlook.load.ended(sent, now + seconds, served=True)


def test_a_home_that_never_answered_and_declares_too_little_gets_its_requests_back() -> None:
    picked = served_by(0.09, 0.13, 300, near_declares=100.0)
    assert "far" in picked[:20], "it does look slow at first"
    after = picked[3 * int(STARVED_S) :]
    assert after.count("near") > 0.75 * len(after), "but for those with which far is tried again in its turn"


@pytest.mark.parametrize("near_declares", [100.0, 1000.0])
def test_a_home_that_is_slow_costs_few_requests(near_declares: float) -> None:
    picked = served_by(0.5, 0.13, 600, near_declares=near_declares)
    assert picked.count("near") <= 0.05 * len(picked)
