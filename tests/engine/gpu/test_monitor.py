from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from engine.gpu.fit import Needs
from engine.gpu.monitor import Monitor, open_monitor
from engine.gpu.view import LEAST_WINDOWS
from engine.model.layout import LayoutError
from tests.engine.gpu.fake_nvml import GIB, WHOLE, Device, FakeNvml

XID, ECC, RECOVERY = 0x8, 0x2, 0x8000
SMALL = Needs((("weights", GIB),), 1, 1)
PATIENCE_S = 20


class Watched:
    """A clock that goes on by a second at each look, and an engine that was busy for `share` of it."""

    def __init__(self, fake: FakeNvml, share: float = 1.0) -> None:
        self.monitor = open_monitor(environ={}, module=fake)
        self.failed = threading.Event()
        self._share = share
        self._now = 0.0

    def begin(self) -> None:
        self.monitor.start(lambda: self._now * self._share, self.failed.set, self._clock)

    def _clock(self) -> float:
        self._now += 1
        return self._now

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@contextmanager
def watching(fake: FakeNvml, share: float = 1.0) -> Iterator[Watched]:
    watched = Watched(fake, share)
    watched.begin()
    try:
        yield watched
    finally:
        watched.monitor.close()
        assert fake.open == []


def test_a_fatal_event_is_a_fault_that_is_told_once() -> None:
    fake = FakeNvml(Device())
    with watching(fake) as watched:
        fake.events.put((XID, 79, WHOLE))
        assert watched.failed.wait(PATIENCE_S)
        fake.events.put((ECC, 0, WHOLE))
        watched.until(lambda: watched.monitor.view().events == {"xid": 1, "ecc": 1})
        view = watched.monitor.view()
    assert view.fault == "GPU 0 (NVIDIA H100 80GB HBM3): Xid 79: it has fallen off the bus"
    assert (view.watch, view.last_event) == ("watched", "uncorrectable memory error (double-bit ECC)")


def test_a_program_s_fault_is_counted_and_nothing_ends() -> None:
    fake = FakeNvml(Device())
    with watching(fake) as watched:
        fake.events.put((XID, 31, WHOLE))
        fake.events.put((RECOVERY, 0, WHOLE))
        watched.until(lambda: watched.monitor.view().events == {"xid": 1, "recovery": 1})
        assert not watched.failed.is_set()
        assert watched.monitor.fault is None


def test_an_event_of_another_instance_is_not_ours() -> None:
    parts = [Device(uuid="MIG-1", instance_id=1), Device(uuid="MIG-2", instance_id=2)]
    fake = FakeNvml(Device(instances=parts))
    with watching(fake) as watched:
        fake.events.put((ECC, 0, 2))
        fake.events.put((XID, 13, 1))
        watched.until(lambda: watched.monitor.view().events == {"xid": 1})
        fake.events.put((ECC, 0, WHOLE))
        assert watched.failed.wait(PATIENCE_S)
        assert watched.monitor.view().mig


def test_a_device_that_is_lost_while_it_is_watched_is_a_fault() -> None:
    fake = FakeNvml(Device())
    with watching(fake) as watched:
        fake.events.put("NVML_ERROR_GPU_IS_LOST")
        assert watched.failed.wait(PATIENCE_S)
        watched.until(lambda: watched.monitor.view().watch == "lost")


def test_a_watch_that_fails_is_told_and_the_node_goes_on() -> None:
    fake = FakeNvml(Device())
    with watching(fake) as watched:
        fake.events.put("NVML_ERROR_UNKNOWN")
        watched.until(lambda: watched.monitor.view().watch == "failed")
        assert not watched.failed.is_set()
        assert "are not watched: NVML: nvmlEventSetWait_v2" in watched.monitor.notes[-1]


def test_windows_count_while_the_engine_is_busy() -> None:
    fake = FakeNvml(Device(sm=[80.0, 40.0, 60.0]))
    with watching(fake) as watched:
        watched.until(lambda: watched.monitor.view().windows >= LEAST_WINDOWS)
        view = watched.monitor.view()
    assert view.sampling == "sampled"
    assert view.susi is not None
    assert 0 < view.susi < 1
    assert view.memory_busy == 0.5
    assert view.memory is not None
    assert view.memory.total == 80 * GIB


def test_windows_of_an_idle_engine_tell_nothing_of_it() -> None:
    fake = FakeNvml(Device())
    with watching(fake, share=0.5) as watched:
        watched.until(lambda: fake.calls.count("nvmlGpmMetricsGet") > 2 * LEAST_WINDOWS)
        view = watched.monitor.view()
    assert (view.windows, view.sm_busy, view.susi) == (0, None, None)


@pytest.mark.parametrize(
    ("device", "watch", "sampling"),
    [
        (Device(gpm=False), "watched", "unsupported"),
        (Device(event_types=0), "unsupported", "sampled"),
        (Device(fails={"nvmlGpmSampleGet": "NVML_ERROR_NO_PERMISSION"}), "watched", "no_permission"),
        (Device(fails={"nvmlDeviceGetSupportedEventTypes": "NVML_ERROR_NO_PERMISSION"}), "no_permission", "sampled"),
        (Device(fails={"nvmlDeviceGetMemoryInfo": "NVML_ERROR_NOT_SUPPORTED"}), "watched", "sampled"),
    ],
)
def test_what_a_device_does_not_tell_is_a_state(device: Device, watch: str, sampling: str) -> None:
    fake = FakeNvml(device)
    with watching(fake) as watched:
        watched.until(lambda: "starting" not in (watched.monitor.view().watch, watched.monitor.view().sampling))
        view = watched.monitor.view()
    assert (view.watch, view.sampling) == (watch, sampling)
    assert len(view.notes) == [watch, sampling].count("unsupported") + [watch, sampling].count("no_permission")


@pytest.mark.parametrize(
    ("fails", "state"),
    [
        ({"nvmlInit": "NVML_ERROR_LIBRARY_NOT_FOUND"}, "no_library"),
        ({"nvmlInit": "NVML_ERROR_NO_PERMISSION"}, "no_permission"),
        ({"nvmlDeviceGetHandleByIndex": "NVML_ERROR_NO_PERMISSION"}, "no_permission"),
        ({"nvmlDeviceGetHandleByIndex": "NVML_ERROR_GPU_IS_LOST"}, "lost"),
        ({"nvmlDeviceGetName": "mismatch"}, "too_old"),
    ],
)
def test_without_nvml_a_node_goes_on_and_says_why(fails: dict[str, str], state: str) -> None:
    fake = FakeNvml(Device(), fails=fails)
    watched = Watched(fake)
    watched.monitor.check(SMALL)
    with watched.monitor.under_load():
        pass
    watched.begin()
    view = watched.monitor.view()
    assert (view.watch, view.sampling, view.memory, view.link, view.susi) == (state, state, None, None, None)
    assert view.notes[0].startswith("the GPU is not watched: NVML")
    watched.monitor.close()
    assert fake.open == []


def test_a_plan_that_is_too_large_is_refused_before_anything_is_begun() -> None:
    devices = Device(processes={7: 79 * GIB}), Device(uuid="GPU-2")
    monitor = open_monitor(environ={}, module=FakeNvml(*devices, programs={7: "train"}))
    with pytest.raises(LayoutError, match=r"process 7 \(train\) holds .*\(2\) use GPU 1 .*GPU-2"):
        monitor.check(SMALL)
    monitor.close()


def test_a_device_that_needs_a_reset_is_refused() -> None:
    monitor = open_monitor(environ={}, module=FakeNvml(Device(action=1)))
    with pytest.raises(LayoutError, match="cannot be used: the driver asks for a reset of the device"):
        monitor.check(SMALL)
    monitor.close()


def test_memory_that_cannot_be_asked_for_refuses_nothing() -> None:
    device = Device(fails={"nvmlDeviceGetMemoryInfo": "NVML_ERROR_NOT_SUPPORTED"})
    monitor = open_monitor(environ={}, module=FakeNvml(device))
    monitor.check(SMALL)
    assert "was not checked" in monitor.notes[0]
    monitor.close()


def test_the_link_under_load_is_told_with_its_warning() -> None:
    monitor = open_monitor(environ={}, module=FakeNvml(Device(links=[(3, 16)])))
    with monitor.under_load():
        pass
    status = monitor.view().status()
    assert status["link"] == {"generation": 3, "width": 16}
    assert status["link_possible"] == {"generation": 5, "width": 16}
    assert "generation 3 x16 under load" in status["notes"][0]
    monitor.close()


def test_a_monitor_that_never_began_is_closed_too() -> None:
    fake = FakeNvml(Device())
    monitor: Monitor = open_monitor(environ={}, module=fake)
    for _ in range(2):
        monitor.close()
    assert fake.open == []
