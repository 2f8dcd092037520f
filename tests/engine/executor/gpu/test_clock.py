"""Moments on the device, told in the host's clock, though the two count at different rates."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.executor.gpu.clock import DeviceClock

STEP_S = 0.005


@dataclass(frozen=True)
class Passed:
    """An event, by the device's own clock."""

    at: float

    def elapsed_time(self, later: Passed) -> float:
        return (later.at - self.at) * 1000


@pytest.mark.parametrize("rate", [1.001, 0.999], ids=["the device is fast", "the device is slow"])
def test_clocks_that_drift_apart_stay_together(rate: float) -> None:
    """Steps that the device begins as soon as it has them, over 50 seconds: unbounded, they would be 50 ms off."""
    clock = DeviceClock(Passed(0.0), 100.0)
    for number in range(1, 10_000):
        begins = 100.0 + number * STEP_S
        ends = begins + 0.8 * STEP_S
        for at, given, seen in ((begins, begins - 20e-6, ends + 30e-6), (ends, begins - 10e-6, ends + 30e-6)):
            found = clock.seconds(Passed((at - 100.0) * rate), given, seen)
            assert given <= found <= seen
            assert found == pytest.approx(at, abs=60e-6)


def test_a_device_that_is_never_idle_is_off_by_what_is_queued_at_most() -> None:
    clock = DeviceClock(Passed(0.0), 0.0)
    for number in range(1, 20_000):
        ends = number * STEP_S
        found = clock.seconds(Passed(ends * 0.999), given=ends - 2 * STEP_S, seen=ends + 1e-5)
        assert ends - 2 * STEP_S <= found <= ends + 1e-5


def test_intervals_are_the_devices_own_between_the_bounds() -> None:
    clock = DeviceClock(Passed(50.0), 10.0)
    first = clock.seconds(Passed(50.010), given=9.0, seen=11.0)
    assert clock.seconds(Passed(50.0123), given=9.0, seen=11.0) - first == pytest.approx(0.0023)
