from __future__ import annotations

import math

import pytest

from engine.gpu.device import select
from engine.gpu.gpm import GpmSampler, Window
from engine.gpu.library import Cause, Library, NvmlError
from engine.gpu.view import LEAST_WINDOWS, WINDOWS, SmUse
from tests.engine.gpu.fake_nvml import Device, FakeNvml


def sampler(fake: FakeNvml) -> GpmSampler:
    return GpmSampler(select(Library(fake), 0, {}))


def test_a_window_lies_between_two_samples() -> None:
    fake = FakeNvml(Device(sm=[75.0, 25.0]))
    found = sampler(fake)
    assert [found.window() for _ in range(2)] == [Window(0.75, 0.5), Window(0.25, 0.5)]
    found.close()
    assert fake.open == ["library"]


def test_of_a_divided_device_only_the_instance_is_sampled() -> None:
    part = Device(uuid="MIG-1", instance_id=3, sm=[40.0])
    assert sampler(FakeNvml(Device(instances=[part]))).window() == Window(0.4, 0.5)


def test_before_hopper_there_is_none_and_no_other_counter_is_asked() -> None:
    fake = FakeNvml(Device(gpm=False))
    with pytest.raises(NvmlError, match="begin with Hopper") as raised:
        sampler(fake)
    assert raised.value.cause is Cause.UNSUPPORTED
    assert not any("Utilization" in name for name in fake.calls)


def test_a_sample_that_may_not_be_taken_leaves_nothing_behind() -> None:
    fake = FakeNvml(Device(fails={"nvmlGpmSampleGet": "NVML_ERROR_NO_PERMISSION"}))
    with pytest.raises(NvmlError) as raised:
        sampler(fake)
    assert raised.value.cause is Cause.NO_PERMISSION
    assert fake.open == ["library"]


def test_a_figure_that_is_none_makes_no_window() -> None:
    assert sampler(FakeNvml(Device(sm=[math.nan]))).window() is None


def test_susi_is_of_enough_windows_and_of_the_last() -> None:
    use = SmUse()
    assert (use.busy, use.susi) == (None, None)
    for _ in range(LEAST_WINDOWS - 1):
        use.add(0.5)
    assert (use.busy, use.susi) == (0.5, None)
    use.add(0.5)
    assert use.susi == 1
    for index in range(WINDOWS):
        use.add((0.4, 0.8)[index % 2])
    assert len(use) == WINDOWS
    assert use.busy == pytest.approx(0.6)
    assert use.susi == pytest.approx(1 - 0.2 / 0.6)


def test_a_device_that_did_nothing_is_not_even() -> None:
    use = SmUse()
    for _ in range(WINDOWS):
        use.add(0.0)
    assert use.susi is None
