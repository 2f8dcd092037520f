from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.home import Home
from edgeproxy.routing.rtt import RttEstimator
from tests.routing.fleet import home


def test_home_moves_only_for_ten_milliseconds_and_a_third() -> None:
    for old, new, moves in [
        (0.060, 0.041, False),  # 19 ms nearer, but more than two thirds
        (0.024, 0.015, False),  # less than two thirds, but only 9 ms nearer
        (0.060, 0.039, True),
        (0.300, 0.199, True),
    ]:
        found = home(a=old, b=None)
        found.update({"a": old, "b": new})
        assert found.region == ("b" if moves else "a"), (old, new)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.040, 0.049), st.floats(0.040, 0.049)), min_size=1))
def test_noise_between_near_equals_never_moves_home(rounds: list[tuple[float, float]]) -> None:
    found = home(a=0.040, b=0.049)
    for a, b in rounds:
        found.update({"a": a, "b": b})
        assert found.region == "a"
        assert found.ranks == {"a": 0, "b": 1}


def test_two_regions_within_10_ms_and_5_ms_of_jitter_never_flap_in_an_hour() -> None:
    """Probes every five seconds, as in life, on a virtual clock."""
    for seed in range(20):
        rng = Random(seed)
        base = {"a": rng.uniform(0.020, 0.100)}
        base["b"] = base["a"] + rng.uniform(-0.010, 0.010)
        estimators, found, moves = {name: RttEstimator() for name in base}, Home(base), 0
        now = 0.0
        while now < 3600:
            for name, rtt in base.items():
                estimators[name].probe(rtt + rng.uniform(0, 0.005), now)
            before = found.region
            found.update({name: estimator.minimum(now) for name, estimator in estimators.items()})
            moves += before is not None and before != found.region
            now += 5.0
        assert moves == 0, seed
