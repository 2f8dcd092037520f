from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.routing.forecast import DOUBT_S, DOUBT_SHARE, MOMENT_S, SETTLED, Outlook, Timings
from edgeproxy.routing.load import Occupancy
from edgeproxy.routing.pace import Pace
from tests.routing.fleet import node


def outlook(rtt_s: float = 0.020, per_token: float = 0.001) -> Outlook:
    found = node("n", "r", rtt_s).outlook
    found.pace = Pace(per_token=per_token, decode=0.010)
    return found


@given(
    st.floats(0, 60),
    st.floats(1, 5000),
    st.integers(0, 20),
    st.integers(0, 4),
    st.integers(0, 3000),
    st.floats(0.2, 3.0),
)
def test_the_cost_is_the_forecasts_total(
    age: float, tokens: float, running: int, waiting: int, ahead: int, gain: float
) -> None:
    found = outlook()
    found.waited.value, found.shared.value, found.pace.per_row = gain, gain / 2, 0.002
    found.reported(Occupancy(running, waiting, ahead, 100), 100.0)
    forecast = found.forecast(100.0 + age, tokens)
    cost = found.cost(100.0 + age, tokens)
    assert forecast.total == pytest.approx(cost)
    doubt = max(DOUBT_S, DOUBT_SHARE * cost) if found.load.hot(100.0 + age, tokens) else 0.0
    assert found.cost(100.0 + age, tokens, doubted=True) == pytest.approx(cost + doubt)
    assert min(forecast) >= 0


def test_the_terms_are_what_they_are_called() -> None:
    found = outlook()
    found.reported(Occupancy(0, 0, 200), 1.0)
    network, queue, prefill, decode = found.forecast(1.0, 50.0)
    assert network == pytest.approx(0.020, abs=1e-3)
    assert queue == pytest.approx(0.180, abs=1e-3)  # 200 tokens, less one round trip in which the node works on
    assert prefill == pytest.approx(0.050) and decode == pytest.approx(0.010)


def test_failed_requests_never_lower_an_estimate() -> None:
    """A node that fails at once must not look fast (sinkholing)."""
    rng, found = Random(1), outlook()
    for _ in range(50):
        sent = found.sent(0.0, 500.0)
        found.began(sent, 500.0, Timings(0.54, 0.0, 0.51))
        found.load.ended(sent, 0.6, served=True)
    before = {tokens: found.cost(10.0, tokens) for tokens in (1.0, 100.0, 3000.0)}
    for _ in range(500):
        sent = found.sent(10.0, rng.uniform(1, 1000))
        assert found.cost(10.0, 100.0) >= before[100.0]
        found.load.ended(sent, 10.001, served=False)
    for tokens, cost in before.items():
        assert found.cost(10.0, tokens) >= cost


def test_a_node_without_timings_is_learnt_from_our_own_first_byte() -> None:
    found, rng, now = outlook(per_token=94e-6), Random(2), 0.0
    for _ in range(150):
        now += 10.0
        tokens = float(rng.choice((50, 300, 1000)))
        sent = found.sent(now, tokens)
        found.began(sent, tokens, Timings(0.020 + 0.015 + 0.002 * tokens))
        found.load.ended(sent, now + 3, served=True)
    assert found.cost(now + 10, 600.0) == pytest.approx(0.035 + 1.2, rel=0.05)


def test_of_answers_that_come_at_once_one_is_learnt_from_and_none_waits_there_any_more() -> None:
    found = outlook()
    for _ in range(SETTLED):  # of a node that nobody knows yet, every answer tells something
        found.began(found.sent(0.0, 100.0), 100.0, Timings(0.030 + found.pace.expect(100.0, 0.0), 0.0, 0.110))
    assert found.pace.samples == SETTLED
    for moment in (1.0, 1.0 + 2 * MOMENT_S, 0.5):  # answers may be told of late: that one came before the others
        sent = [found.sent(moment, 100.0) for _ in range(50)]
        expected = found.pace.expect(100.0, 0.0)
        for index, one in enumerate(sent):
            took = expected if index == 0 else 9.0
            found.began(one, 100.0, Timings(0.030 + index * MOMENT_S / 100, 0.0, took))
    assert found.pace.samples == SETTLED + 3
    assert found.pace.expect(100.0, 0.0) == pytest.approx(0.110)
    assert found.load.pending == 0


def test_the_queue_is_learnt_where_a_node_takes_the_shortest_first() -> None:
    found = outlook()
    for moment in range(100):
        now = moment * 10.0
        found.reported(Occupancy(1, 0, 500), now)
        sent = found.sent(now, 20.0)
        found.began(sent, 20.0, Timings(0.2, 0.12, 0.03))  # a quarter of the 480 ms that stood before it
        found.load.ended(sent, now + 1, served=True)
    found.reported(Occupancy(1, 0, 500), 2000.0)
    assert found.forecast(2000.0, 20.0).queue == pytest.approx(0.12, rel=0.1)


def test_what_prompts_lose_to_each_other_is_learnt_apart_from_the_pace() -> None:
    """A node that takes turns between prompts starts each at once: nothing is queue, and all of it looks like work."""
    found, now = outlook(per_token=0.001), 0.0
    for number in range(300):
        now += 10.0
        ahead, tokens = (0, 300, 900)[number % 3], (100, 400)[number % 2]
        found.reported(Occupancy(1, 0, ahead), now)
        sent = found.sent(now, float(tokens))
        alone = 0.010 + 0.001 * tokens
        work = alone + min(sent.queue, alone)  # a fair share while both run
        found.began(sent, float(tokens), Timings(0.020 + work, 0.0, work))
        found.load.ended(sent, now + 5.0, served=True)
    found.reported(Occupancy(1, 0, 900), now)
    assert found.shared.value == pytest.approx(1.0, rel=0.15)
    assert found.waited.value < 0.05
    assert found.pace.expect(400.0, 0.0) == pytest.approx(0.410, rel=0.1)
    assert found.cost(now, 100.0) == pytest.approx(0.020 + 0.220, rel=0.15)


def test_half_of_the_answers_come_sooner_than_is_told_though_the_mean_is_larger() -> None:
    found, rng, sooner = outlook(), Random(5), 0
    for number in range(2000):
        now = number * 10.0
        fact = 0.13 + (1.0 if rng.random() < 0.2 else 0.0) + rng.random() * 0.02
        sent = found.sent(now, 100.0)
        sooner += number >= 500 and fact < sent.expected
        found.began(sent, 100.0, Timings(fact, 0.0, fact - 0.020))
        found.load.ended(sent, now + 5.0, served=True)
    assert 0.4 < sooner / 1500 < 0.6
    assert found.cost(20_000.0, 100.0) > found.sent(20_000.0, 100.0).expected * 1.1
