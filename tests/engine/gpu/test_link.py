from __future__ import annotations

from engine.gpu.device import Gpu, Link, select
from engine.gpu.library import Cause, Library
from engine.gpu.link import LinkUnderLoad
from tests.engine.gpu.fake_nvml import Device, FakeNvml


def gpu(device: Device) -> Gpu:
    return select(Library(FakeNvml(device)), 0, {})


def test_the_best_that_is_seen_counts_since_an_idle_link_is_slow() -> None:
    device = Device(links=[(1, 16), (5, 16), (1, 16)])
    with LinkUnderLoad(gpu(device)) as link:
        while len(device.links) > 1:
            link._thread.join(0.001)
    assert (link.seen, link.possible, link.warning) == (Link(5, 16), Link(5, 16), None)


def test_a_load_that_is_over_at_once_is_looked_at_once() -> None:
    with LinkUnderLoad(gpu(Device(links=[(4, 16)], best_link=(4, 16)))) as link:
        pass
    assert link.seen == Link(4, 16)


def test_a_slow_link_is_a_warning_with_device_found_and_possible() -> None:
    with LinkUnderLoad(gpu(Device(links=[(4, 8)]))) as link:
        pass
    assert link.warning is not None
    assert link.warning.startswith(
        "GPU 0 (NVIDIA H100 80GB HBM3): PCIe generation 4 x8 under load where generation 5 x16 is possible, 25% of"
    )


def test_a_device_without_a_link_is_no_warning() -> None:
    for device in (
        Device(links=[(0, 0)]),
        Device(fails={"nvmlDeviceGetCurrPcieLinkGeneration": "NVML_ERROR_NOT_SUPPORTED"}),
    ):
        with LinkUnderLoad(gpu(device)) as link:
            pass
        assert link.warning is None
        assert link.trouble is not None
        assert link.trouble.cause is Cause.UNSUPPORTED
