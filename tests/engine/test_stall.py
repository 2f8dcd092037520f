from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stall import Stall

MOST_S = 15.0
GAPS = st.lists(st.floats(0, 1000), min_size=1, max_size=20)


def looks(gaps: list[float], busy_since: float = 0.0) -> list[float]:
    stall = Stall(MOST_S)
    stall.look(None, busy_since)
    return [stall.look(busy_since, now) for now in accumulate(gaps, initial=busy_since)][1:]


@given(GAPS)
def test_a_process_that_was_stopped_has_hung_for_no_longer_than_somebody_looked_on(gaps: list[float]) -> None:
    """However long it was stopped: each time counts for no more than MOST_S, and time that was watched counts whole."""
    assert looks(gaps)[-1] == pytest.approx(sum(min(gap, MOST_S) for gap in gaps))


def test_one_stop_of_any_length_makes_nobody_end() -> None:
    stall = Stall(MOST_S)
    assert stall.look(100.0, 100.5) == pytest.approx(0.5)
    assert stall.look(100.0, 100_000.0) == pytest.approx(15.5)
    assert stall.look(100_000.1, 100_000.2) == pytest.approx(0.1), "a step has ended"


@given(GAPS)
def test_what_gets_something_done_has_not_hung(gaps: list[float]) -> None:
    stall = Stall(MOST_S)
    for now in accumulate(gaps):
        assert stall.look(now, now) == 0


@given(GAPS)
def test_what_has_nothing_to_do_has_not_hung(gaps: list[float]) -> None:
    stall = Stall(MOST_S)
    stall.look(0.0, 1.0)
    for now in accumulate(gaps, initial=1.0):
        assert stall.look(None, now) == 0


def test_work_that_came_between_two_looks_has_lasted_since_it_came() -> None:
    stall = Stall(MOST_S)
    stall.look(None, 0.0)
    assert stall.look(8.0, 10.0) == pytest.approx(2.0)
    assert stall.look(8.0, 11.0) == pytest.approx(3.0)
