"""Small native executors over files made for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine import _native
from engine.executor.native import ACTIVATION_BITS, PACKER, NativeExecutor
from engine.model.arch import LlamaConfig, llama_config
from engine.model.gguf import Gguf, read
from tests.engine.gguf_files import TINY, write_llama

ISAS = _native.isas()
ARITHMETICS = tuple(ACTIVATION_BITS)
SHAPES = {
    "one head a group": LlamaConfig(1, 64, 96, 2, 2, 32, 512, 130, 10_000.0, 1e-5),
    "three heads a group": LlamaConfig(2, 96, 160, 6, 2, 16, 512, 257, 100_000.0, 1e-5),
    "five heads a group": LlamaConfig(2, 160, 64, 5, 1, 32, 512, 33, 10_000.0, 1e-6),
    "wide heads": LlamaConfig(1, 320, 64, 4, 2, 80, 512, 64, 500_000.0, 1e-5),
}


def make_native(path: Path, *, arithmetic: str = "float32", **changes: Any) -> NativeExecutor:
    gguf = read(path)
    sizes: dict[str, Any] = {"threads": 2, "slots": 8, "blocks": 128, "context": 512, "step_tokens": 256}
    model = gguf if arithmetic == "float32" else packed_copy(gguf, path.with_suffix(".packed"))
    return NativeExecutor(model, llama_config(gguf), activation_bits=ACTIVATION_BITS[arithmetic], **sizes | changes)


def write_shape(folder: Path, shape: str, dtype: str = "Q4_1") -> Path:
    return write_llama(folder / "shape.gguf", SHAPES[shape], dtype=dtype)


def packed_copy(gguf: Gguf, path: Path) -> Gguf:
    """The same model with its matrices packed, in a file that holds tensors alone."""
    data, weights, tensors = gguf.path.read_bytes(), bytearray(), {}
    for tensor in gguf.tensors.values():
        dtype, packed = PACKER.packed(tensor, data[tensor.offset : tensor.offset + tensor.nbytes])
        weights += bytes(-len(weights) % _native.PACKED_ALIGNMENT)
        tensors[tensor.name] = tensor._replace(dtype=dtype, offset=len(weights), nbytes=len(packed))
        weights += packed
    path.write_bytes(weights)
    return replace(gguf, path=path, tensors=tensors)


__all__ = ["ARITHMETICS", "ISAS", "SHAPES", "TINY", "make_native", "packed_copy", "write_shape"]
