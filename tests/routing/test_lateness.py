"""One answer in twenty comes later than the estimate says, whatever the distribution; and it follows a node."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from edgeproxy.routing.lateness import LEAST_SAMPLES, Lateness

Draw = Callable[[Random], float]
DRAWS: dict[str, Draw] = {
    "symmetric": lambda rng: rng.choice((-1, 1)) * rng.expovariate(1 / 0.020),
    "always later": lambda rng: rng.expovariate(1 / 0.100),
    "always earlier": lambda rng: -0.2 - rng.random() * 0.1,
    "mostly punctual": lambda rng: 2.0 if rng.random() < 0.03 else rng.gauss(0.0, 0.001),
    "two kinds": lambda rng: rng.gauss(0.3, 0.02) if rng.random() < 0.3 else rng.gauss(0.0, 0.02),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_one_answer_in_twenty_is_later(draw: Draw) -> None:
    found, rng, beyond = Lateness(), Random(3), 0
    for number in range(6000):
        late = draw(rng)
        if number >= 1000:
            assert found.p95_s is not None
            beyond += late > found.p95_s
        found.seen(late)
    assert 0.02 < beyond / 5000 < 0.07


def test_nothing_is_said_before_one_late_answer_was_to_be_expected() -> None:
    found = Lateness()
    for _ in range(LEAST_SAMPLES - 1):
        found.seen(0.010)
    assert found.p95_s is None
    found.seen(0.010)
    assert found.p95_s == 0.010


def test_who_is_overtaken_was_late() -> None:
    """Were such requests forgotten, a node that has become slow would never be known as slow: copies would answer."""
    found, rng = Lateness(), Random(5)
    for _ in range(200):
        found.seen(rng.gauss(0.0, 0.01))
    before = found.p95_s
    for _ in range(200):
        found.overtaken()
    assert before is not None and found.p95_s is not None and found.p95_s > 10 * before


def test_it_follows_a_node_that_has_become_slower_and_faster_again() -> None:
    found, rng = Lateness(), Random(7)
    for level in (0.0, 0.5, 0.0):
        for _ in range(400):
            found.seen(rng.gauss(level, 0.01))
        assert found.p95_s == pytest.approx(level, abs=0.15)
