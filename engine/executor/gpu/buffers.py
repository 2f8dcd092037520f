"""The arena: one allocation, and the tensors in it, as engine/model/gpu_layout.py places them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from engine.executor.gpu.launch import Sampled, Shape, Slots, Tiled
from engine.executor.gpu.state import INTS, REALS, TOLD
from engine.model import gpu_layout
from engine.model.arch import LlamaConfig
from engine.model.gpu_layout import GpuSizes
from engine.step import BLOCK_TOKENS

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


class Arena:
    """Views of it stay good when its memory is given back and taken again; their contents are lost."""

    def __init__(self, config: LlamaConfig, sizes: GpuSizes, device: torch.device) -> None:
        """Raises torch.OutOfMemoryError (a RuntimeError)."""
        _, *regions = gpu_layout.plan(config, 0, sizes).regions
        self._places = {
            p.buffer.name: (region.offset + p.offset, p.buffer.nbytes) for region in regions for p in region.buffers
        }
        last = regions[-1]
        self.bytes = torch.zeros(last.offset + last.nbytes, dtype=torch.uint8, device=device)

    def take(self, name: str, dtype: torch.dtype, *shape: int) -> Tensor:
        """Raises ValueError for another size than was planned."""
        offset, nbytes = self._places[name]
        if prod(shape) * dtype.itemsize != nbytes:
            raise ValueError(f"{name}: {prod(shape) * dtype.itemsize} bytes are needed, {nbytes} were planned")
        return self.bytes[offset : offset + nbytes].view(dtype).view(shape)

    def drop(self) -> None:
        self.bytes.untyped_storage().resize_(0)

    def restore(self) -> None:
        self.bytes.untyped_storage().resize_(self.bytes.numel())
        self.bytes.zero_()


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What the host tells of a step: views of one buffer, which is copied as a whole."""

    whole: Tensor
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    tiled: Tiled
    sample_tokens: Tensor
    sample_slots: Tensor


def step_views(whole: Tensor, tokens: int, rows: int) -> StepBuffers:
    """whole: int32 [6 * (tokens + rows)], for steps of so many tokens and sampling rows."""
    cuts = [tokens, tokens, tokens, *(tokens + rows,) * 3, rows, rows]
    ids, positions, slots, *tiles, sample_tokens, sample_slots = torch.split(whole[: sum(cuts)], cuts)
    return StepBuffers(whole, ids, positions, slots, Tiled(*tiles), sample_tokens, sample_slots)


class Buffers:
    """Every tensor of a step. Shapes as in engine/executor/gpu/launch.py; tokens first."""

    def __init__(self, arena: Arena, shape: Shape, sizes: GpuSizes) -> None:
        config, tokens, rows = shape.config, sizes.step_tokens, sizes.rows
        dtype, f32, i32 = DTYPES[sizes.dtype], torch.float32, torch.int32
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        take = arena.take
        self.angles = take("angles", f32, shape.context, dim)
        self.residual = take("residual", f32, tokens, config.hidden)
        self.delta = take("delta", f32, tokens, config.hidden)
        self.normed = take("normed", dtype, tokens, config.hidden)
        self.qkv = take("qkv", f32, tokens, (heads + 2 * kv_heads) * dim)
        self.queries = take("queries", dtype, tokens, heads, dim)
        self.sums = take("sums", f32, tokens, heads, shape.parts, 2)
        self.parts = take("parts", f32, tokens, heads, shape.parts, dim)
        self.attended = take("attended", dtype, tokens, heads * dim)
        self.ffn = take("ffn", dtype, tokens, config.ffn)
        self.gathered = take("gathered", dtype, rows, config.hidden)
        self.logits = take("logits", f32, rows, config.vocab)
        kv_dtype = torch.uint8 if sizes.kv_dtype == "fp8" else dtype
        self.kv = take("kv", kv_dtype, config.layers, 2, sizes.blocks, kv_heads, BLOCK_TOKENS, dim)
        self.block = take("block", kv_dtype, config.layers, 2, kv_heads, BLOCK_TOKENS, dim)
        self.adjusted = take("adjusted", f32, rows, config.vocab)
        self.ordered = take("ordered", f32, rows, config.vocab)
        self.order = take("order", torch.int64, rows, config.vocab)
        self.choice = take("choice", i32, rows)
        self.results = take("results", i32, rows, 2)
        self.told_ids = take("told ids", i32, rows, TOLD)
        self.told = take("told", torch.float64, rows, TOLD + 1)
        self.slots = Slots(
            take("ints", i32, sizes.slots, INTS),
            take("reals", torch.float64, sizes.slots, REALS),
            take("seen", i32, sizes.slots, config.vocab),
            take("allowed", i32, sizes.slots, shape.words),
            take("last logits", f32, sizes.slots, config.vocab),
        )
        self.table = take("table", i32, sizes.slots, shape.table)
        self.step = step_views(take("step", i32, 6 * (tokens + rows)), tokens, rows)
        self.masked = take("masked", i32, rows)

    def sampled(self, rows: int) -> Sampled:
        return Sampled(self.step.sample_tokens[:rows], self.step.sample_slots[:rows], self.masked[:rows])


def angles(config: LlamaConfig, context: int) -> Tensor:
    """[context, head_dim], float32: cosines of pair i at position p, then sines; computed in float64."""
    dim = config.head_dim
    turns = config.rope_theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(context, dtype=torch.float64)[:, None] * turns
    return torch.cat([angle.cos(), angle.sin()], 1).float()
