from __future__ import annotations

import pytest

from engine.gpu.device import Gpu, Holder, Link, select
from engine.gpu.library import Cause, Library, NvmlError
from tests.engine.gpu.fake_nvml import GIB, Device, FakeNvml


def two(first: str = "NVIDIA H100 80GB HBM3") -> list[Device]:
    return [Device(name=first, uuid="GPU-aaaa-1"), Device(uuid="GPU-aabb-2")]


def chosen(devices: list[Device], ordinal: int = 0, /, **environ: str) -> Gpu:
    return select(Library(FakeNvml(*devices)), ordinal, environ)


def test_the_device_is_the_one_that_cuda_will_use() -> None:
    assert chosen(two(), 1).uuid == "GPU-aabb-2"
    assert chosen(two(), CUDA_VISIBLE_DEVICES="1").uuid == "GPU-aabb-2"
    assert chosen(two(), 1, CUDA_VISIBLE_DEVICES="1, 0").uuid == "GPU-aaaa-1"
    assert chosen(two(), CUDA_VISIBLE_DEVICES="GPU-aab").uuid == "GPU-aabb-2"


@pytest.mark.parametrize("visible", ["", "0", "0,,1", "GPU-aa,GPU-aa", "GPU-zz,GPU-zz", "0,MIG-none"])
def test_what_cuda_would_not_see_is_refused(visible: str) -> None:
    with pytest.raises(NvmlError) as raised:
        chosen(two(), 1, CUDA_VISIBLE_DEVICES=visible)
    assert raised.value.cause is Cause.NO_DEVICE


def test_among_different_devices_the_order_must_be_nvml_s() -> None:
    devices = two("NVIDIA A2")
    with pytest.raises(NvmlError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        chosen(devices)
    assert chosen(devices, CUDA_DEVICE_ORDER="PCI_BUS_ID").name == "NVIDIA A2"
    assert chosen(devices, CUDA_VISIBLE_DEVICES="GPU-aaaa").name == "NVIDIA A2"


def divided() -> Device:
    parts = [Device(name=f"H100 MIG {i}g", uuid=f"MIG-{i}", total=i * 10 * GIB, instance_id=i + 4) for i in (1, 2)]
    return Device(instances=parts)


@pytest.mark.parametrize(("environ", "part"), [({}, 1), ({"CUDA_VISIBLE_DEVICES": "MIG-2"}, 2)])
def test_of_a_divided_device_an_instance_is_used(environ: dict[str, str], part: int) -> None:
    gpu = chosen([divided()], 0, **environ)
    assert (gpu.mig, gpu.instance_id, gpu.uuid) == (True, part + 4, f"MIG-{part}")
    assert gpu.memory().total == part * 10 * GIB
    assert str(gpu) == f"GPU 0 (H100 MIG {part}g)"
    assert gpu.link() == Link(5, 16)


def test_holders_are_named_without_their_arguments_and_the_largest_comes_first() -> None:
    device = Device(processes={7: GIB, 8: 2 * GIB, 9: None})
    fake = FakeNvml(device, programs={8: "/usr/bin/python3 serve.py --key secret"})
    found = select(Library(fake), 0, {}).holders()
    assert found == (Holder(8, "python3", 2 * GIB), Holder(7, None, GIB), Holder(9, None, None))


def test_a_device_without_a_recovery_action_says_so() -> None:
    with pytest.raises(NvmlError, match="tells no recovery action"):
        chosen([Device(action=None)]).recovery_action()
    gpu = select(Library(FakeNvml(Device(), without=("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",))), 0, {})
    with pytest.raises(NvmlError) as raised:
        gpu.recovery_action()
    assert raised.value.cause is Cause.TOO_OLD


def test_a_link_is_as_fast_as_its_generation_doubled_and_its_lanes() -> None:
    assert Link(5, 16).speed == 2 * Link(4, 16).speed == 4 * Link(4, 8).speed
