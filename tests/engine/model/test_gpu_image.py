"""Matrices for a GPU are those of the file, rounded once or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.executor.dequantise import dequantise
from engine.model import gpu_layout, layout
from engine.model.gguf import read
from engine.model.gpu_image import packer, parts
from engine.model.gpu_layout import GpuSizes
from engine.model.pack import pack
from tests.engine.gguf_files import TINY, write_llama


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)])
@pytest.mark.parametrize("source", ["F32", "F16", "Q4_1", "Q8_0"])
def test_a_dense_matrix_is_rounded_to_nearest(tmp_path: Path, source: str, dtype: str, kind: torch.dtype) -> None:
    path = write_llama(tmp_path / "x.gguf", dtype=source)
    image = pack(path, tmp_path / "image", packer(dtype, kept=False))
    data, packed = np.fromfile(path, np.uint8), np.fromfile(image.path, np.uint8)
    for name, tensor in read(path).tensors.items():
        found = image.tensors[name]
        exact = torch.from_numpy(dequantise(data, tensor))
        view = torch.from_numpy(
            packed[found.offset : found.offset + tensor.shape[0] * exact[0].numel() * kind.itemsize]
        )
        if len(tensor.shape) == 2:
            assert torch.equal(view.view(kind).view(tensor.shape), exact.to(kind))
        else:
            assert found.dtype == "F32"


@pytest.mark.parametrize(("source", "kept", "bits"), [("Q4_1", "Q4_1p", 4), ("Q8_0", "Q8_0p", 8)])
def test_a_kept_matrix_has_the_very_values_of_the_file(tmp_path: Path, source: str, kept: str, bits: int) -> None:
    path = write_llama(tmp_path / "x.gguf", dtype=source)
    image = pack(path, tmp_path / "image", packer("bf16", kept=True))
    tensor, found = read(path).tensors["blk.1.ffn_up.weight"], image.tensors["blk.1.ffn_up.weight"]
    assert found.dtype == kept
    rows, cols = tensor.shape
    raw = np.fromfile(image.path, np.uint8)[found.offset : found.offset + found.nbytes]
    levels, *scales = (raw[part.offset : part.offset + part.nbytes] for part in parts(kept, rows, cols))
    scale, *minimum = (one.view(np.float16).astype(np.float32).reshape(rows, -1, 1) for one in scales)
    if bits == 4:
        values = np.stack([levels & 15, levels >> 4], -1).astype(np.float32)
    else:
        values = levels.view(np.int8).astype(np.float32)
    values = values.reshape(rows, -1, 32) * scale + (minimum[0] if minimum else np.float32(0))
    np.testing.assert_array_equal(values.reshape(rows, cols), dequantise(np.fromfile(path, np.uint8), tensor))
    assert image.tensors["output.weight"].dtype == "BF16"


def test_columns_that_groups_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="no multiple of 32"):
        parts("Q8_0p", 4, 40)


def test_the_plan_counts_what_a_gpu_holds() -> None:
    sizes = GpuSizes(step_tokens=64, slots=8, blocks=100, context=256)
    plan = gpu_layout.plan(TINY, 1000, sizes)
    assert plan.kv_block == 2 * TINY.layers * TINY.kv_heads * TINY.head_dim * 16 * 2
    assert plan.region("kv").nbytes >= 100 * plan.kv_block
    assert gpu_layout.plan(TINY, 1000, sizes._replace(kv_dtype="fp8")).kv_block == plan.kv_block // 2
    assert plan.region("activations").nbytes < plan.region("activations").apart
    for region in plan.regions:
        for one in region.buffers:
            for other in region.buffers:
                if one is not other and one.buffer.beside(other.buffer):
                    assert one.end <= other.offset or other.end <= one.offset
    with pytest.raises(layout.LayoutError, match="KV type int8"):
        gpu_layout.plan(TINY, 1000, sizes._replace(kv_dtype="int8"))
