"""The hour in slices: what is counted can be added up, and a percentile read from it is nearly the true one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.observe.history import BINS, BINS_A_DECADE, KEPT, SLICE_S, History, Spread, bin_of, seconds_of, together
from edgeproxy.observe.rings import Kind

seconds = st.floats(0.001, 99.0)


def spread(values: list[float]) -> Spread:
    history = History()
    for number, value in enumerate(values):
        history.answered([value], True, float(number))
    return together(history.since(0))


@given(st.lists(seconds, min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_percentile_is_within_a_bin_of_the_true_one(values: list[float], share: float) -> None:
    found = spread(values).quantile(share)
    exact = sorted(values)[max(-(-share * len(values) // 1).__int__() - 1, 0)]
    assert found == pytest.approx(exact, rel=10 ** (1 / BINS_A_DECADE) - 1 + 1e-9)


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_no_percentile_is_beyond_what_was_seen(values: list[float], share: float) -> None:
    """A bin's end, or its middle, would be."""
    found = spread(values).quantile(share)
    assert found is not None and min(values) <= found <= max(values)


def test_percentiles_of_one_bin_are_told_apart() -> None:
    low, high = seconds_of(50), seconds_of(51)
    values = [low + (high - low) * (number + 0.5) / 1000 for number in range(1000)]
    for share in (0.05, 0.5, 0.95):
        assert spread(values).quantile(share) == pytest.approx(values[int(share * 1000) - 1], rel=0.002)


@given(st.floats(0, 1e6))
def test_what_is_beyond_either_end_counts_at_that_end(value: float) -> None:
    assert 0 <= bin_of(value) < BINS


def test_longer_is_never_in_a_lower_bin() -> None:
    assert [bin_of(seconds_of(index + 0.5)) for index in range(BINS)] == list(range(BINS))


def test_nothing_counted_has_no_percentile() -> None:
    assert spread([]).quantile(0.5) is None


def test_slices_begin_every_ten_seconds_and_empty_ones_are_left_out() -> None:
    history = History()
    for now, taken in ((1000.0, 0.1), (1009.9, 0.2), (1010.0, 0.3), (1055.0, 0.4)):
        history.answered([taken], taken <= 0.15, now)
    history.unseen(Kind.FAILED, 1056.0)
    history.unseen(Kind.REFUSED, 1056.0)
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
        history.answered([0.1], True, count * SLICE_S)
    history.answered([0.1], True, 0.0)
    slices = list(history.since(0))
    assert len(slices) == KEPT
    assert sum(slices[-1].bins.values()) == 2
