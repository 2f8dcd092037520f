from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.executor.upload import Span, Uploader
from engine.executor.upload_torch import DeviceWeights, MappedBytes, TorchTransport, uploader

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


def test_without_cuda_it_is_the_same_ring() -> None:
    source = torch.arange(16, dtype=torch.uint8)
    target = torch.zeros_like(source)
    upload = uploader(source, target, [Span(0, 16)])
    upload.begin()
    upload.finish()
    assert torch.equal(target, source)
