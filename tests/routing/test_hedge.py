"""Second copies: few whatever happens, only of late requests, only where there is room; the worst gets better."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.routing.forecast import Outlook, Timings
from edgeproxy.routing.hedge import BURST, MAX_SHARE, Hedging, due_s, second
from edgeproxy.routing.load import HOT_QUEUE_S, Occupancy
from edgeproxy.sim.clock import Clock
from tests.routing.fleet import node


@given(st.floats(0.0, 0.5), st.lists(st.booleans(), max_size=600))
def test_never_more_copies_than_the_share_of_the_requests_so_far(share: float, asked: list[bool]) -> None:
    hedging, copies = Hedging(share), 0
    for requests, late in enumerate(asked, 1):
        hedging.sent()
        copies += late and hedging.take()
        assert copies <= min(share, MAX_SHARE) * requests + 1e-9


def test_a_quiet_day_pays_for_a_burst_but_for_no_storm() -> None:
    hedging = Hedging(0.02)
    for _ in range(100_000):
        hedging.sent()
    assert sum(hedging.take() for _ in range(1000)) == BURST


def test_nothing_is_due_at_a_node_that_has_hardly_answered() -> None:
    assert due_s(Outlook(), 0.1) is None


def test_due_after_what_is_usual_and_never_before_the_forecast() -> None:
    early, late = Outlook(), Outlook()
    for _ in range(100):
        early.lateness.seen(-0.05)
        late.lateness.seen(0.05)
    assert due_s(early, 0.2) == 0.2
    assert due_s(late, 0.2) == pytest.approx(0.25, abs=0.01)


def test_the_copy_goes_to_the_first_that_has_room() -> None:
    down, full, standby, shut, fit = (node(name, "far", 0.01) for name in ("down", "full", "standby", "shut", "fit"))
    down.ready = False
    full.outlook.load.free_at = 100.0 + 2 * HOT_QUEUE_S
    standby.standby = True
    shut.breaker.hold_off(10.0, 100.0)
    assert second([down, full, standby, shut, fit], 10.0, 100.0) is fit
    assert second([down, full, standby, shut, replace(fit, draining=True)], 10.0, 100.0) is None


class Tail:
    """Requests one by one for a node that now and then hesitates, on a virtual clock; the copy's node never does."""

    def __init__(self, share: float, hesitates: float, seed: int) -> None:
        self.clock, self.rng = Clock(), Random(seed)
        self.outlook, self.hedging = Outlook(), Hedging(share)
        self.outlook.rtt.probe(0.001, 0.0)
        self.hesitates = hesitates
        self.copies = 0
        self.took: list[float] = []

    def run(self, requests: int) -> list[float]:
        for number in range(requests):
            self.clock.at(number * 4.0, self._request)
        self.clock.run()
        return sorted(self.took)

    def _request(self) -> None:
        now, outlook = self.clock.now, self.outlook
        outlook.load.reported(Occupancy(0, 0, 0), outlook.pace, now, 0.0)
        sent = outlook.sent(now, 10.0)
        took = 1.2 + self.rng.random() * 0.02 + (2.0 if self.rng.random() < self.hesitates else 0.0)
        self.hedging.sent()
        due = due_s(outlook, sent.expected)
        if due is not None and took > due and self.hedging.take():
            self.copies += 1
            if due + 1.2 < took:
                self.clock.at(now + due + 1.2, self._overtaken, sent, due + 1.2)
                return
        self.clock.at(now + took, self._answered, sent, took)

    def _answered(self, sent: object, took: float) -> None:
        self.outlook.began(sent, 10.0, Timings(took, 0.0, took))  # type: ignore[arg-type]
        self._ended(sent, took)

    def _overtaken(self, sent: object, took: float) -> None:
        self.outlook.lateness.overtaken()
        self._ended(sent, took)

    def _ended(self, sent: object, took: float) -> None:
        self.outlook.load.ended(sent, self.clock.now, served=True)  # type: ignore[arg-type]
        self.took.append(took)


@pytest.mark.parametrize("seed", range(5))
def test_fewer_answers_are_very_late_with_copies(seed: int) -> None:
    plain, hedged = Tail(0.0, 0.015, seed), Tail(0.02, 0.015, seed)
    very_late = [sum(took > 3.0 for took in tail.run(4000)) for tail in (plain, hedged)]
    assert very_late[1] < 0.8 * very_late[0]
    assert 0 < hedged.copies <= 0.02 * 4000


@given(st.floats(0.0, 1.0), st.integers(0, 100))
def test_a_node_that_is_slow_always_gets_no_more_copies_than_the_share(hesitates: float, seed: int) -> None:
    tail = Tail(0.02, hesitates, seed)
    assert len(tail.run(300)) == 300
    assert tail.copies <= 0.02 * 300
