"""GGUF tensors as float32 arrays, with numpy. Block formats: ggml-common.h of https://github.com/ggml-org/ggml."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.model.gguf import BLOCKS, TensorInfo

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def dequantise(data: Bytes, tensor: TensorInfo) -> Floats:
    """`data` is the whole file; the result has the tensor's shape. Raises ValueError for other dtypes."""
    raw = data[tensor.offset : tensor.offset + tensor.nbytes]
    match tensor.dtype:
        case "F32":
            values = raw.view(np.float32)
        case "F16":
            values = raw.view(np.float16).astype(np.float32)
        case "Q8_0":
            values = _q8_0(raw)
        case "Q4_1":
            values = _q4_1(raw)
        case _:
            raise ValueError(f"tensor {tensor.name!r}: {tensor.dtype} cannot be dequantised here")
    return values.reshape(tensor.shape)


def _q8_0(raw: Bytes) -> Floats:
    """A block: scale f16, 32 x int8."""
    blocks = raw.reshape(-1, BLOCKS["Q8_0"][1])
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_1(raw: Bytes) -> Floats:
    """A block: scale f16, minimum f16, 16 bytes; byte i has element i in its low and i + 16 in its high four bits."""
    blocks = raw.reshape(-1, BLOCKS["Q4_1"][1])
    packed = blocks[:, 4:]
    quants = np.concatenate([packed & 0x0F, packed >> 4], axis=1).astype(np.float32)
    return _half(blocks, 0) * quants + _half(blocks, 2)


def _half(blocks: Bytes, at: int) -> Floats:
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)
