"""Models of known shapes and random weights, as images that take no room on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import Device
from engine.executor.gpu.matrix import randomise
from engine.model.arch import LlamaConfig, tensors_of
from engine.model.gguf import TensorInfo
from engine.model.gpu_image import ALIGNMENT, DTYPES, parts
from engine.model.gpu_layout import GpuSizes

TINY = LlamaConfig(2, 256, 512, 8, 2, 32, 512, 1000, 10_000.0, 1e-5)
HEADS = LlamaConfig(2, 1024, 2048, 8, 2, 128, 512, 1000, 10_000.0, 1e-5)
"""Heads as an 8B has them, and its groups."""
SMALLEST = LlamaConfig(1, 64, 64, 4, 2, 16, 64, 96, 10_000.0, 1e-5)
"""For the interpreter."""
SMOLLM2 = LlamaConfig(30, 576, 1536, 9, 3, 64, 8192, 49152, 100_000.0, 1e-5)
LLAMA_1B = LlamaConfig(16, 2048, 8192, 32, 8, 64, 131072, 128256, 500_000.0, 1e-5)
LLAMA_8B = LlamaConfig(32, 4096, 14336, 32, 8, 128, 131072, 128256, 500_000.0, 1e-5)


@dataclass(frozen=True, slots=True)
class Section:
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Blank:
    """What the executor takes of an image: a file of zeros that the file system does not store."""

    path: Path
    layout: str
    config: LlamaConfig
    tensors: dict[str, TensorInfo]
    sections: dict[str, Section]
    digest: str = "random"


def blank(config: LlamaConfig, folder: Path, dtype: str, bits: int) -> Blank:
    """bits: 16 (or 32 with f32): all matrices are dense; 8, 4: those of layers are kept in so many."""
    kept = {8: "Q8_0p", 4: "Q4_1p"}.get(bits, DTYPES[dtype])
    tensors: dict[str, TensorInfo] = {}
    at = 0
    for name, shape, _ in tensors_of(config):
        kind = "F32" if len(shape) == 1 else kept if name.startswith("blk.") else DTYPES[dtype]
        last = parts(kind, shape[0], shape[1] if len(shape) == 2 else 1)[-1]
        tensors[name] = TensorInfo(name, kind, shape, at, last.offset + last.nbytes)
        at += -(-tensors[name].nbytes // ALIGNMENT) * ALIGNMENT
    path = folder / "weights"
    with path.open("wb") as file:
        file.truncate(at)
    return Blank(path, f"gpu-{dtype}-{bits}", config, tensors, {"weights": Section(0, at)})


def opened(image: Blank, device: Device, sizes: GpuSizes) -> CudaExecutor:
    """An executor of it, its weights still zeros on their way."""
    return CudaExecutor(image, device, sizes)  # type: ignore[arg-type]


def fill(executor: CudaExecutor, seed: int = 1) -> None:
    """Weights such that activations keep their size. Nothing is submitted, and the upload is over."""
    source = torch.Generator(executor.device.torch_device).manual_seed(seed)
    weights = executor.weights
    for vector in (weights.norm, *(v for layer in weights.layers for v in (layer.attn_norm, layer.ffn_norm))):
        vector.fill_(1.0)
    layers = (matrix for layer in weights.layers for matrix in layer.matrices)
    for matrix in {id(m): m for m in (weights.embedding, weights.head, *layers)}.values():
        randomise(matrix, source)
