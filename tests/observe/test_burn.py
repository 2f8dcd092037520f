"""The budget burns as fast as requests miss it, and nobody is called for one slow request or for what is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.observe.burn import KEPT, LEAST_BAD, LEAST_EVENTS, PAIRS, Burn, burn_families

MINUTE = 60.0


def test_a_rate_of_one_spends_the_budget_exactly() -> None:
    burn = Burn(0.95)
    for number in range(100):
        burn.count(number >= 5, 1000.0)
    assert burn.rate(60, 1000.0) == pytest.approx(1.0)
    assert burn.rates(1000.0) == pytest.approx({"5m": 1.0, "30m": 1.0, "1h": 1.0, "6h": 1.0, "3d": 1.0})


def test_no_requests_have_no_rate() -> None:
    assert Burn(0.95).rate(60, 0.0) is None
    assert Burn(0.95).rates(0.0) == {}


def fill(burn: Burn, good: bool, minutes: range, per_minute: int) -> None:
    for minute in minutes:
        for _ in range(per_minute):
            burn.count(good, minute * MINUTE)


def test_both_windows_must_burn() -> None:
    burn = Burn(0.99)
    fill(burn, False, range(60), 10)
    assert burn.view(59 * MINUTE)[0]["state"] == "burning"
    fill(burn, True, range(60, 66), 10)
    page = burn.view(65 * MINUTE)[0]
    assert page["long"] > page["limit"]
    assert page["short"] == 0
    assert page["state"] == "ok", "it is over"


@pytest.mark.parametrize("objective", [0.9, 0.95, 0.99, 0.999])
def test_too_few_requests_are_neither_ok_nor_burning(objective: float) -> None:
    """Whatever the objective: at each pair's limit there have to be enough that the bad ones are no chance."""
    for index, pair in enumerate(PAIRS):
        burn, least = Burn(objective), pair.least(objective)
        assert least >= LEAST_EVENTS and least * pair.limit(objective) * (1 - objective) >= LEAST_BAD - 1e-6
        for _ in range(least - 1):
            burn.count(False, 0.0)
        assert burn.view(0.0)[index]["state"] == "few"
        burn.count(False, 0.0)
        assert burn.view(0.0)[index]["state"] == "burning"


@given(st.floats(0.5, 0.99999))
def test_where_nobody_is_served_in_time_every_objective_calls_somebody(objective: float) -> None:
    burn = Burn(objective)
    fill(burn, False, range(3), max(pair.least(objective) for pair in PAIRS) // 3 + 1)
    assert [pair["state"] for pair in burn.view(2 * MINUTE)] == ["burning"] * 3


@given(st.floats(0.5, 0.99999))
def test_the_faster_a_limit_calls_the_higher_it_is_and_none_is_below_what_the_objective_allows(
    objective: float,
) -> None:
    fast, slow, ticket = (pair.limit(objective) for pair in PAIRS)
    assert 1 / (1 - objective) > fast > slow > ticket == 1


def test_usual_objectives_have_the_usual_limits() -> None:
    for objective in (0.95, 0.99, 0.999):
        assert [pair.limit(objective) for pair in PAIRS] == [14.4, 6.0, 1.0]


def test_two_slow_requests_of_twenty_after_a_start_burn_nothing() -> None:
    burn = Burn(0.95)
    for number in range(20):
        burn.count(number >= 2, 0.0)
    assert [pair["state"] for pair in burn.view(0.0)] == ["ok", "ok", "few"]


def test_scrapes_tell_how_many_requests_a_rate_rests_on_and_how_many_it_needs() -> None:
    burn = Burn(0.95)
    burn.count(True, 0.0)
    found = {family.name: {s.labels["window"]: s.value for s in family.samples} for family in burn_families(burn, 0.0)}
    assert found["edgeproxy_budget_window_requests"] == {"5m": 1, "30m": 1, "6h": 1}
    assert found["edgeproxy_budget_window_least"] == {"5m": 20, "30m": 20, "6h": 100}
    assert found["edgeproxy_budget_burn_limit_ratio"] == {"1h": 14.4, "6h": 6.0, "3d": 1.0}


@given(st.lists(st.tuples(st.integers(0, 3 * KEPT), st.booleans()), max_size=300), st.integers(1, KEPT))
def test_a_window_holds_what_came_within_it(events: list[tuple[int, bool]], minutes: int) -> None:
    burn = Burn(0.9)
    events.sort(key=lambda event: event[0])
    for minute, good in events:
        burn.count(good, minute * MINUTE)
    now = events[-1][0] if events else 0
    inside = [good for minute, good in events if now - minute < minutes]
    assert burn.within(minutes, now * MINUTE) == (len(inside), inside.count(False))
