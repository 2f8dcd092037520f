from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.least_squares import LeastSquares, Vector

LEAST: Vector = (0.0, 0.0, 0.0)
MOST: Vector = (10.0, 10.0, 10.0)


def dot(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_what_a_coefficient_at_its_bound_cannot_take_goes_to_the_others() -> None:
    """Cut off and left at that, it would leave the sample unexplained."""
    fit, now, x = LeastSquares((100.0, 100.0, 0.01)), (0.1, 5.0, 0.0), (1.0, 1.0, 0.0)
    found = fit.moved(now, x, 1.0 - dot(now, x), 1.0, LEAST, MOST)
    assert found[0] == 0.0
    assert dot(found, x) == pytest.approx(1.0, rel=0.05)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(*[st.floats(0, 100)] * 3, st.floats(-1000, 1000)), max_size=60))
def test_coefficients_stay_within_their_bounds(samples: list[tuple[float, float, float, float]]) -> None:
    fit, now = LeastSquares((1.0, 4.0, 0.5)), (1.0, 1.0, 1.0)
    for *x, miss in samples:
        now = fit.moved(now, (x[0], x[1], x[2]), miss, 0.95, LEAST, MOST)
        assert all(0.0 <= value <= 10.0 for value in now)
