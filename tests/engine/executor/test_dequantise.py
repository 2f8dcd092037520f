from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from engine.executor.dequantise import dequantise
from engine.model.gguf import BLOCKS, Gguf, TensorInfo


@pytest.mark.parametrize("dtype", ["Q4_1", "Q8_0", "F16", "F32"])
def test_equals_the_gguf_package(dtype: str) -> None:
    elements, nbytes = BLOCKS[dtype]
    rows, columns = 6, 64
    values = np.random.default_rng(1).normal(0, 3, (rows, columns)).astype(np.float32)
    packed = quants.quantize(values, GGMLQuantizationType[dtype])
    data = np.concatenate([np.zeros(64, np.uint8), packed.view(np.uint8).reshape(-1)])
    tensor = TensorInfo("t", dtype, (rows, columns), 64, rows * columns // elements * nbytes)

    found = dequantise(data, tensor)

    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, quants.dequantize(packed, GGMLQuantizationType[dtype]))


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.29.ffn_down.weight", "blk.0.attn_k.weight"])
def test_equals_the_gguf_package_on_the_real_file(gguf: Gguf, name: str) -> None:
    tensor = gguf.tensors[name]
    data = np.memmap(gguf.path, np.uint8, mode="r")
    raw = data[tensor.offset : tensor.offset + tensor.nbytes].reshape(tensor.shape[0], -1)
    np.testing.assert_array_equal(dequantise(data, tensor), quants.dequantize(raw, GGMLQuantizationType[tensor.dtype]))


def test_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="'t': Q6_K cannot be dequantised"):
        dequantise(np.zeros(210, np.uint8), TensorInfo("t", "Q6_K", (256,), 0, 210))
