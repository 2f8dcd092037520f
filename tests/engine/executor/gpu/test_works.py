"""Steps are padded to few sizes, each of which is captured once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.executor.gpu.works import ladder


@given(st.integers(1, 1 << 16))
def test_no_step_is_padded_to_twice_its_tokens_and_the_largest_to_none(step_tokens: int) -> None:
    sizes = list(ladder(step_tokens))
    assert (sizes[0], sizes[-1]) == (1, step_tokens)
    assert all(less < more <= 2 * less for less, more in pairwise(sizes))
