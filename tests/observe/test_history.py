"""The hour in slices: what is counted can be added up, and a percentile read from it is nearly the true one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.observe.history import BINS, KEPT, SLICE_S, History, bin_of, middle_of, quantile

seconds = st.floats(0.001, 99.0)


@given(st.lists(seconds, min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_within_five_percent(values: list[float], share: float) -> None:
    found = quantile(Counter(map(bin_of, values)), share)
    exact = sorted(values)[max(-(-share * len(values) // 1).__int__() - 1, 0)]
    assert found == pytest.approx(exact, rel=0.05)


@given(st.floats(0, 1e6))
def test_what_is_beyond_either_end_counts_at_that_end(value: float) -> None:
    assert 0 <= bin_of(value) < BINS


def test_longer_is_never_in_a_lower_bin() -> None:
    assert [bin_of(middle_of(index)) for index in range(BINS)] == list(range(BINS))


def test_nothing_counted_has_no_percentile() -> None:
    assert quantile({}, 0.5) is None


def test_slices_begin_every_ten_seconds_and_empty_ones_are_left_out() -> None:
    history = History()
    for now, taken in ((1000.0, 0.1), (1009.9, 0.2), (1010.0, 0.3), (1055.0, 0.4)):
        history.answered(taken, taken <= 0.15, now)
    history.failed(1056.0)
    found = [one.view() for one in history.since(0)]
    assert [(one["start"], one["count"], one["within"], one["failed"]) for one in found] == [
        (1000, 2, 1, 0),
        (1010, 1, 0, 0),
        (1050, 1, 0, 1),
    ]
    assert [one.start for one in history.since(1010)] == [1010, 1050]


def test_an_hour_is_kept_and_a_clock_that_goes_back_loses_nothing() -> None:
    history = History()
    for count in range(2 * KEPT):
        history.answered(0.1, True, count * SLICE_S)
    history.answered(0.1, True, 0.0)
    slices = list(history.since(0))
    assert len(slices) == KEPT
    assert sum(slices[-1].bins.values()) == 2
