"""The image's weights on the device: the same bytes, and views of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.executor.gpu.matrix import Matrix, of_parts
from engine.executor.upload import Span
from engine.model.arch import LlamaConfig
from engine.model.gguf import TensorInfo
from engine.model.gpu_image import BITS, parts

DENSE = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Layer:
    attn_norm: Tensor
    q: Matrix
    k: Matrix
    v: Matrix
    output: Matrix
    ffn_norm: Tensor
    gate: Matrix
    up: Matrix
    down: Matrix

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.q, self.k, self.v, self.output, self.gate, self.up, self.down


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Matrix
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Matrix


def views(arena: Tensor, base: int, tensors: Mapping[str, TensorInfo], config: LlamaConfig) -> Weights:
    """arena: the bytes of the file from `base` on, uint8. Raises ValueError for tensors that the kernels cannot
    read."""

    def vector(name: str) -> Tensor:
        tensor = tensors[f"{name}.weight"]
        return arena[tensor.offset - base : tensor.offset - base + tensor.nbytes].view(torch.float32)

    def matrix(name: str) -> Matrix:
        return _matrix(arena, base, tensors[f"{name}.weight"])

    def layer(index: int) -> Layer:
        at = f"blk.{index}."
        q, k, v, output = (matrix(f"{at}attn_{part}") for part in ("q", "k", "v", "output"))
        gate, up, down = (matrix(f"{at}ffn_{part}") for part in ("gate", "up", "down"))
        return Layer(vector(f"{at}attn_norm"), q, k, v, output, vector(f"{at}ffn_norm"), gate, up, down)

    embedding = matrix("token_embd")
    head = matrix("output") if "output.weight" in tensors else embedding
    return Weights(embedding, tuple(map(layer, range(config.layers))), vector("output_norm"), head)


def _matrix(arena: Tensor, base: int, tensor: TensorInfo) -> Matrix:
    if tensor.dtype not in BITS:
        raise ValueError(f"tensor {tensor.name!r} is {tensor.dtype}, which no kernel for a GPU reads; pack it again")
    rows, cols = tensor.shape
    found = []
    for index, part in enumerate(parts(tensor.dtype, rows, cols)):
        start = tensor.offset - base + part.offset
        kind = DENSE.get(tensor.dtype) or (torch.float16 if index else _levels(tensor.dtype))
        found.append(arena[start : start + part.nbytes].view(kind).view(part.rows, part.cols))
    return of_parts(rows, cols, BITS[tensor.dtype], tuple(found))


def _levels(dtype: str) -> torch.dtype:
    return torch.int8 if dtype == "Q8_0p" else torch.uint8


def spans(tensors: Mapping[str, TensorInfo], base: int, layers: int) -> tuple[Span, ...]:
    """What is to be uploaded before what runs: the embedding, each layer, the head. One for all of it, first, where the
    file does not hold layers apart."""
    groups: list[list[TensorInfo]] = [[] for _ in range(layers + 2)]
    for name, tensor in tensors.items():
        groups[_group(name, layers)].append(tensor)
    found = [
        Span(
            min(t.offset for t in group) - base, max(t.offset + t.nbytes for t in group) - min(t.offset for t in group)
        )
        for group in groups
    ]
    ordered = sorted(found)
    if any(one.offset + one.nbytes > other.offset for one, other in pairwise(ordered)):
        whole = Span(ordered[0].offset, max(s.offset + s.nbytes for s in found) - ordered[0].offset)
        return (whole, *[Span(0, 0)] * (layers + 1))
    return tuple(found)


def _group(name: str, layers: int) -> int:
    if name.startswith("blk."):
        return 1 + int(name.split(".")[1])
    return 0 if name == "token_embd.weight" else layers + 1
