"""A llama forward pass in torch over paged KV: what the oracle computes, with or without the native roundings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.executor.dequantise import dequantise
from engine.model.arch import LlamaConfig
from engine.model.gguf import Gguf
from engine.step import BLOCK_TOKENS

LEVEL_BLOCK = 32
KV_GROUP = 16
LEVELS = {8: 127, 16: 32_639}
"""Bits of an activation -> its largest level: a signed byte's, or 127 * 256 + 127."""
PACKED_DTYPES = frozenset({"Q4_1", "Q8_0"})
"""Matrices of these types, once packed, are multiplied with integer activations by the native kernels, the others with
float32."""


@dataclass(frozen=True, slots=True)
class Emulation:
    """Where the native executor rounds more coarsely than to float32: the oracle then rounds there too."""

    activation_bits: int | None = 16
    """Of the input of every matrix of PACKED_DTYPES, in blocks of 32: see `to_levels`. None: it is not rounded."""
    half_kv: bool = True
    """Keys, after RoPE, and values to float16."""
    int8_kv: bool = False
    """Instead: keys, after RoPE, and values to 8 bits, 16 of a token under one scale of float16."""
    dtype: torch.dtype = torch.float64
    """Of everything else."""


EXACT = Emulation(activation_bits=None, half_kv=False, dtype=torch.float32)
"""No rounding but float32's own: the plain oracle."""


class Llama:
    """Weights in `emulation.dtype`, and a KV pool of `blocks` blocks."""

    def __init__(self, gguf: Gguf, config: LlamaConfig, emulation: Emulation, *, blocks: int) -> None:
        data = np.fromfile(gguf.path, np.uint8)
        self._config = config
        self._emulation = emulation
        self._weights = {
            name: torch.from_numpy(dequantise(data, tensor)).to(emulation.dtype)
            for name, tensor in gguf.tensors.items()
        }
        self._packed = {name for name, tensor in gguf.tensors.items() if tensor.dtype in PACKED_DTYPES}
        shape = (config.layers, blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        kv_dtype = torch.float16 if emulation.half_kv and not emulation.int8_kv else emulation.dtype
        self._keys = torch.full(shape, math.nan, dtype=kv_dtype)
        """Physical position = block * 16 + offset. NaN until written, so that reading too far shows."""
        self._values = torch.full(shape, math.nan, dtype=kv_dtype)

    @property
    def block_bytes(self) -> int:
        return 2 * self._keys[:, :BLOCK_TOKENS].numel() * self._keys.element_size()

    def forget(self) -> None:
        """As if nothing had been written."""
        self._keys.fill_(math.nan)
        self._values.fill_(math.nan)

    def read_block(self, block: int) -> bytes:
        """Keys, then values, each [layers, 16, kv_heads, head_dim]."""
        return b"".join(part.contiguous().numpy().tobytes() for part in self._parts(block))

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        keys, values = self._parts(block)
        dtype = np.dtype(str(keys.dtype).removeprefix("torch."))
        found = torch.from_numpy(np.frombuffer(content, dtype).copy()).view(2, *keys.shape)
        keys[:], values[:] = found

    def _parts(self, block: int) -> tuple[Tensor, Tensor]:
        positions = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        return self._keys[:, positions], self._values[:, positions]

    def forward(self, rows: list[tuple[tuple[int, ...], int, tuple[int, ...]]]) -> Tensor:
        """Rows of (tokens, start, blocks) -> hidden states [all tokens, hidden], in the order of the rows."""
        tokens = torch.tensor([token for ids, _, _ in rows for token in ids])
        positions = torch.cat([torch.arange(start, start + len(ids)) for ids, start, _ in rows])
        places = [_places(blocks, start + len(ids)) for ids, start, blocks in rows]
        hidden = self._weights["token_embd.weight"][tokens]
        for layer in range(self._config.layers):
            hidden = hidden + self._attention(layer, self._norm(hidden, f"blk.{layer}.attn_norm"), positions, places)
            hidden = hidden + self._feed_forward(layer, self._norm(hidden, f"blk.{layer}.ffn_norm"))
        return self._norm(hidden, "output_norm")

    def head(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> float32 logits [n, vocab]"""
        return self._linear(hidden, "output" if "output.weight" in self._weights else "token_embd").float()

    def _attention(self, layer: int, hidden: Tensor, positions: Tensor, places: list[Tensor]) -> Tensor:
        """`places`: per row the physical positions of [0, end); `positions`: logical, of all rows' tokens."""
        config = self._config
        queries = self._rope(self._heads(hidden, f"blk.{layer}.attn_q", config.heads), positions)
        keys = self._rope(self._heads(hidden, f"blk.{layer}.attn_k", config.kv_heads), positions)
        values = self._heads(hidden, f"blk.{layer}.attn_v", config.kv_heads)
        outputs, at = [], 0
        for place in places:
            start = int(positions[at])
            row = slice(at, at + len(place) - start)
            self._keys[layer, place[start:]] = self._stored(keys[row])
            self._values[layer, place[start:]] = self._stored(values[row])
            seen_keys, seen_values = (pool[layer, place].to(hidden.dtype) for pool in (self._keys, self._values))
            outputs.append(_attend(queries[row], seen_keys, seen_values, positions[row]))
            at = row.stop
        return self._linear(torch.cat(outputs), f"blk.{layer}.attn_output")

    def _stored(self, x: Tensor) -> Tensor:
        return (to_int8_kv(x) if self._emulation.int8_kv else x).to(self._keys.dtype)

    def _feed_forward(self, layer: int, hidden: Tensor) -> Tensor:
        """SwiGLU (Shazeer, arXiv:2002.05202)."""
        gate, up = (self._linear(hidden, f"blk.{layer}.ffn_{part}") for part in ("gate", "up"))
        return self._linear(F.silu(gate) * up, f"blk.{layer}.ffn_down")

    def _heads(self, hidden: Tensor, name: str, heads: int) -> Tensor:
        """[n, hidden] -> [n, heads, head_dim]"""
        return self._linear(hidden, name).view(len(hidden), heads, self._config.head_dim)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bits = self._emulation.activation_bits
        if bits is not None and f"{name}.weight" in self._packed:
            x = to_levels(x, bits)
        return F.linear(x, self._weights[f"{name}.weight"])

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], self._weights[f"{name}.weight"], self._config.rms_eps)

    def _rope(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[n, heads, head_dim]; pair (2i, 2i + 1) turns by position * theta ** (-2i / head_dim) (arXiv:2104.09864)."""
        width = self._config.head_dim
        frequencies = self._config.rope_theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = (positions[:, None] * frequencies)[:, None, :]
        cos, sin = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
        even, odd = vectors[..., 0::2], vectors[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def to_levels(x: Tensor, bits: int) -> Tensor:
    """The nearest values that levels of 8 or 16 bits in blocks of 32 can hold, in x's dtype and shape [..., cols].

    By the rule of `_native.matmul`, in float32: most = max|x| of a block, q = x * (top / most) rounded to nearest, ties
    to even, and q * (most / top) is what is multiplied. Zeros where most < 2 ** -100; NaN where x is not finite.
    """
    top = LEVELS[bits]
    blocks = x.float().view(*x.shape[:-1], -1, LEVEL_BLOCK)
    most = blocks.abs().amax(-1, keepdim=True)
    levels = (blocks * torch.where(most < 2**-100, 0, top / most)).round()
    return (levels.to(x.dtype) * (most / top).to(x.dtype)).view(x.shape)


def to_int8_kv(x: Tensor) -> Tensor:
    """The nearest values that an int8 KV holds, in x's dtype and shape [..., head_dim]: csrc/kernels.h has the rule."""
    groups = x.float().view(*x.shape[:-1], -1, KV_GROUP)
    scales = (groups.abs().amax(-1, keepdim=True) / 127).half().float()
    levels = torch.where(scales > 0, groups / scales, 0).round().clamp(-127, 127)
    return (levels * scales).to(x.dtype).view(x.shape)


def _places(blocks: tuple[int, ...], end: int) -> Tensor:
    """Physical positions of the logical [0, end)."""
    logical = torch.arange(end)
    return torch.tensor(blocks)[logical // BLOCK_TOKENS] * BLOCK_TOKENS + logical % BLOCK_TOKENS


def _attend(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Causal, grouped queries. [n, heads, d], [end, kv_heads, d] twice, [n] -> [n, heads * d]"""
    count, heads, width = queries.shape
    end, kv_heads, _ = keys.shape
    grouped = queries.view(count, kv_heads, heads // kv_heads, width)
    scores = torch.einsum("nkgd,ekd->nkge", grouped, keys) / math.sqrt(width)
    future = torch.arange(end) > positions[:, None]
    weights = scores.masked_fill(future[:, None, None, :], -math.inf).softmax(dim=-1)
    return torch.einsum("nkge,ekd->nkgd", weights, values).reshape(count, heads * width)
