from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.executor.upload import Span, Uploader, UploadError
from engine.executor.upload_torch import DeviceWeights, MappedBytes, Registry, TorchTransport, uploader

CPU = torch.device("cpu")


def written(folder: Path, nbytes: int = 5000) -> tuple[Path, bytes]:
    content = random.Random(3).randbytes(nbytes)
    path = folder / "weights"
    path.write_bytes(content)
    return path, content


def layers_of(nbytes: int, size: int) -> list[Span]:
    return [Span(at, min(size, nbytes - at)) for at in range(0, nbytes, size)]


@given(nbytes=st.integers(1, 3000), size=st.integers(1, 800), slots=st.integers(1, 4), slot_bytes=st.integers(1, 500))
def test_the_ring_moves_tensors(nbytes: int, size: int, slots: int, slot_bytes: int) -> None:
    source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    layers = layers_of(nbytes, size)
    upload = Uploader(TorchTransport(source, target, len(layers), slots=slots, slot_bytes=slot_bytes), layers)
    upload.begin()
    for index, layer in enumerate(layers):
        upload.wait(index)
        part = slice(layer.offset, layer.offset + layer.nbytes)
        assert torch.equal(target[part], source[part])
    upload.finish()


def test_a_part_of_a_file_is_mapped_at_any_offset(tmp_path: Path) -> None:
    path, content = written(tmp_path)
    assert bytes(MappedBytes(path, 1234, 99).bytes.tolist()) == content[1234:1333]
    for offset, nbytes in ((4990, 11), (-1, 5), (0, 0)):
        with pytest.raises(ValueError, match="are wanted of 5000"):
            MappedBytes(path, offset, nbytes)


def test_weights_sleep_and_wake_and_views_of_them_stay_good(tmp_path: Path) -> None:
    path, content = written(tmp_path)
    weights = DeviceWeights(MappedBytes(path, 8, 4000), layers_of(4000, 1500), CPU)
    weights.upload().finish()
    view = weights.arena[100:200]
    assert bytes(view.tolist()) == content[108:208]
    for _ in range(2):
        weights.sleep()
        assert weights.arena.untyped_storage().nbytes() == 0
        weights.sleep()
        upload = weights.wake()
        upload.wait(2)
        upload.finish()
        assert bytes(view.tolist()) == content[108:208]
        assert bytes(weights.arena.tolist()) == content[8:4008]


def test_a_layer_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    path, _ = written(tmp_path)
    with pytest.raises(ValueError, match="outside of 4000"):
        DeviceWeights(MappedBytes(path, 0, 4000), [Span(3999, 2)], CPU)


def test_without_cuda_there_are_buffers() -> None:
    source = torch.zeros(16, dtype=torch.uint8)
    upload = uploader(source, torch.empty_like(source), [Span(0, 16)])
    upload.begin()
    upload.finish()


class Driver:
    """With these attributes of its device; `refuses`: the error with which it registers."""

    def __init__(self, attributes: dict[int, int], refuses: int = 0) -> None:
        self.registered: dict[int, tuple[int, int]] = {}
        self._attributes, self._refuses = attributes, refuses

    def cuDeviceGetAttribute(self, out: Any, attribute: int, device: int) -> int:
        out._obj.value = self._attributes.get(attribute, 0)
        return 0

    def cuMemHostRegister_v2(self, address: Any, nbytes: Any, flags: Any) -> int:
        if not self._refuses:
            self.registered[address.value] = (nbytes.value, flags.value)
        return self._refuses

    def cuMemHostUnregister(self, address: Any) -> int:
        del self.registered[address.value]
        return 0


@pytest.mark.parametrize(("attributes", "flags"), [({113: 1}, 8), ({100: 1}, 0), ({100: 1, 113: 1}, 8)])
def test_pages_are_registered_as_the_device_takes_them(attributes: dict[int, int], flags: int) -> None:
    driver = Driver(attributes)
    registry = Registry(0, driver)
    registry.register(4096, 100)
    assert driver.registered == {4096: (100, flags)}
    registry.unregister(4096)
    assert not driver.registered


@given(nbytes=st.integers(1, 3000), size=st.integers(1, 800), slots=st.integers(1, 4), slot_bytes=st.integers(1, 500))
def test_registered_pages_are_copied_without_a_buffer_and_given_back(
    nbytes: int, size: int, slots: int, slot_bytes: int
) -> None:
    source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    driver = Driver({113: 1})
    layers = layers_of(nbytes, size)
    transport = TorchTransport(
        source, target, len(layers), slots=slots, slot_bytes=slot_bytes, registry=Registry(0, driver)
    )
    ((start, (length, _)),) = driver.registered.items()
    assert start <= source.data_ptr() < source.data_ptr() + nbytes == start + length
    assert start % 4096 == 0
    upload = Uploader(transport, layers, threads=1)
    upload.begin()
    for index in range(len(layers)):
        upload.wait(index)
    upload.finish()
    assert torch.equal(target, source)
    assert not driver.registered


def test_pages_that_are_refused_go_through_buffers() -> None:
    source = torch.arange(100, dtype=torch.uint8)
    for driver in (Driver({}), Driver({113: 1}, refuses=801), Driver({113: 1})):
        target = torch.zeros_like(source)
        upload = uploader(source, target, layers_of(100, 30), driver)
        upload.begin()
        upload.finish()
        assert torch.equal(target, source)
        assert not driver.registered


def test_an_upload_that_is_given_up_gives_its_pages_back() -> None:
    source = torch.zeros(100, dtype=torch.uint8)
    driver = Driver({113: 1})
    upload = uploader(source, torch.zeros_like(source), layers_of(100, 30), driver)
    upload.cancel()
    with pytest.raises(UploadError, match="cancelled"):
        upload.finish()
    assert not driver.registered


def test_a_device_or_a_file_system_that_takes_no_mapping_is_told_from_an_error() -> None:
    with pytest.raises(UploadError, match="takes no read-only mappings"):
        Registry(0, Driver({}))
    with pytest.raises(UploadError, match="refused the mapping with error 801"):
        Registry(0, Driver({113: 1}, refuses=801)).register(4096, 100)
