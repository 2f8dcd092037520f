"""The kernels as functions of tensors. What each computes: engine/executor/kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from engine.executor.gpu.matrix import GROUP, Matrix, numbers
from engine.executor.gpu.tiles import Tile, Tiles
from engine.executor.kernels import adjust as adjusting
from engine.executor.kernels import attention, embed, matmul, norm, outcome, rope
from engine.executor.kernels import draw as drawing
from engine.model.arch import LlamaConfig
from engine.model.gpu_layout import PART, SORT_ROWS
from engine.step import BLOCK_TOKENS

EXACT: dict[str, Any] = {"enable_fp_fusion": False}
"""Each operation rounds once, in whatever kernel it stands."""
VOCAB_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernels are compiled for."""

    config: LlamaConfig
    context: int
    slots: int
    tiles: Tiles
    part: int = PART
    """A multiple of 64."""

    @property
    def parts(self) -> int:
        return -(-self.context // self.part)

    @property
    def table(self) -> int:
        """Block ids of a slot."""
        return -(-self.context // BLOCK_TOKENS)

    @property
    def group(self) -> int:
        return self.config.heads // self.config.kv_heads

    @property
    def tile_tokens(self) -> int:
        """Most tokens of a tile of attention."""
        return max(1, self.tiles.queries // self.group)

    @property
    def words(self) -> int:
        """Of a mask over the vocabulary."""
        return -(-self.config.vocab // 32)


def power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def multiply(tiles: Tiles, x: Tensor, matrices: Sequence[Matrix], out: Tensor) -> None:
    """x [rows, cols], up to three matrices -> out [rows, all their rows], which may be columns of a wider tensor. One
    launch for neighbours of as many bits."""
    at = 0
    for bits, alike in groupby(matrices, lambda matrix: matrix.bits):
        together = tuple(alike)
        cols = [matrix.rows for matrix in together]
        _multiply(tiles, x, bits, together, out[:, at : at + sum(cols)])
        at += sum(cols)


def _multiply(tiles: Tiles, x: Tensor, bits: int, matrices: tuple[Matrix, ...], out: Tensor) -> None:
    (rows, depth), cols = x.shape, [matrix.rows for matrix in matrices]
    tile = tiles.of(bits, rows, sum(cols))
    missing = 3 - len(matrices)
    parts = (part for w in (*matrices, *matrices[:1] * missing) for part in (w.values, w.scales, w.minimums))
    matmul.matmul[-(-rows // tile.rows), sum(-(-n // tile.cols) for n in cols)](
        x, *parts, out, rows, *cols, *(0,) * missing, depth, depth // GROUP, out.stride(0),
        BITS=min(bits, 16), **_cut(tile),
    )  # fmt: skip


def gated(tiles: Tiles, x: Tensor, gate: Matrix, up: Matrix, out: Tensor) -> None:
    """x [rows, cols] -> out [rows, gate.rows]: SwiGLU of the two products"""
    (rows, depth), cols = x.shape, gate.rows
    tile = tiles.of(min(gate.bits, up.bits), rows, cols, paired=True)
    matmul.gated[-(-rows // tile.rows), -(-cols // tile.cols)](
        x, gate.values, gate.scales, gate.minimums, up.values, up.scales, up.minimums, out, rows, cols, depth,
        depth // GROUP, GATE_BITS=min(gate.bits, 16), UP_BITS=min(up.bits, 16), **_cut(tile),
    )  # fmt: skip


def _cut(tile: Tile) -> dict[str, Any]:
    return {
        "BM": tile.rows, "BN": tile.cols, "BK": tile.depth, "num_warps": tile.warps, "num_stages": tile.stages, **EXACT
    }  # fmt: skip


def add_norm(shape: Shape, residual: Tensor, delta: Tensor | None, weight: Tensor, out: Tensor) -> None:
    """residual [rows, hidden] += delta; out = its norm"""
    rows, cols = residual.shape
    norm.add_norm[(-(-rows // shape.tiles.tokens),)](
        residual, residual if delta is None else delta, weight, out, rows,
        COLS=cols, EPS=shape.config.rms_eps, ADD=delta is not None, BR=shape.tiles.tokens, BC=power(cols), **EXACT,
    )  # fmt: skip


def gather_norm(shape: Shape, residual: Tensor, delta: Tensor, weight: Tensor, index: Tensor, out: Tensor) -> None:
    """out [n, hidden] = the norm of residual + delta at index [n], which may be -1"""
    rows, cols = out.shape
    norm.gather_norm[(-(-rows // shape.tiles.tokens),)](
        residual, delta, weight, index, out, rows,
        COLS=cols, EPS=shape.config.rms_eps, BR=shape.tiles.tokens, BC=power(cols), **EXACT,
    )  # fmt: skip


def embed_tokens(shape: Shape, tokens: Tensor, slots: Tensor, ints: Tensor, table: Matrix, residual: Tensor) -> None:
    rows = len(tokens)
    embed.embed[(-(-rows // shape.tiles.tokens),)](
        tokens, slots, ints, table.values, table.scales, table.minimums, residual, rows,
        COLS=table.cols, BITS=min(table.bits, 16), BR=shape.tiles.tokens, BC=power(table.cols), **EXACT,
    )  # fmt: skip


def rope_and_store(
    shape: Shape, qkv: Tensor, angles: Tensor, positions: Tensor, slots: Tensor, table: Tensor,
    queries: Tensor, keys: Tensor, values: Tensor,
) -> None:  # fmt: skip
    config, rows, block = shape.config, len(positions), shape.tiles.heads
    rope.rope_and_store[(-(-rows * (config.heads + 2 * config.kv_heads) // block),)](
        qkv, angles, positions, slots, table, queries, keys, values, rows,
        HEADS=config.heads, KV_HEADS=config.kv_heads, DIM=config.head_dim, TABLE=shape.table,
        BLOCK_TOKENS=BLOCK_TOKENS, BR=block, BP=power(config.head_dim // 2), **EXACT,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tiled:
    """The tiles of a launch of attention, each [tiles], int32."""

    slots: Tensor
    firsts: Tensor
    counts: Tensor


def attend(
    shape: Shape, queries: Tensor, keys: Tensor, values: Tensor, table: Tensor, positions: Tensor, slots: Tensor,
    tiled: Tiled, sums: Tensor, outputs: Tensor, out: Tensor,
) -> None:  # fmt: skip
    """queries [n, heads, head_dim] -> out, the same; sums and outputs are what the parts leave for each other."""
    config = shape.config
    sizes: dict[str, Any] = {"HEADS": config.heads, "DIM": config.head_dim, "PART": shape.part, "PARTS": shape.parts}
    width = max(16, power(config.head_dim))
    attention.attend[(len(tiled.slots), config.kv_heads, shape.parts)](
        queries, keys, values, table, positions, tiled.slots, tiled.firsts, tiled.counts, sums, outputs,
        config.head_dim**-0.5, KV_HEADS=config.kv_heads, TABLE=shape.table, BLOCK_TOKENS=BLOCK_TOKENS,
        BM=max(16, power(shape.tile_tokens * shape.group)), BD=width,
        num_warps=shape.tiles.warps, num_stages=shape.tiles.stages, **sizes, **EXACT,
    )  # fmt: skip
    rows, block = len(slots), shape.tiles.heads
    attention.merge[(-(-rows * config.heads // block),)](
        sums, outputs, positions, slots, out, rows, BR=block, BD=width, **sizes, **EXACT
    )


@dataclass(frozen=True, slots=True)
class Slots:
    """The sampling state of all slots (kernels/slot.py)."""

    ints: Tensor
    reals: Tensor
    seen: Tensor
    """[slots, vocab], int32"""
    allowed: Tensor
    """[slots, words], int32"""
    logits: Tensor
    """[slots, vocab], float32: the last ones"""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampling rows of a step: [rows], int32, of a slot of -1 where there is none."""

    tokens: Tensor
    """Which of the step's tokens."""
    slots: Tensor
    masked: Tensor


def adjust(
    shape: Shape, logits: Tensor, sampled: Sampled, positions: Tensor, state: Slots, adjusted: Tensor, choice: Tensor
) -> None:
    vocab = shape.config.vocab
    adjusting.adjust[(len(choice),)](
        logits, sampled.tokens, sampled.slots, sampled.masked, positions, state.ints, state.reals, state.seen,
        state.allowed, state.logits, adjusted, choice,
        VOCAB=vocab, WORDS=shape.words, BLOCK=min(VOCAB_BLOCK, power(vocab)), num_warps=8, **EXACT,
    )  # fmt: skip


def sort(values: Tensor, ordered: Tensor, order: Tensor) -> None:
    """Each row in descending order, equals by id: a few rows at a time, so that what the sort needs beside its results
    is bounded (gpu_layout.sort_bytes)."""
    for at in range(0, len(values), SORT_ROWS):
        part = slice(at, at + SORT_ROWS)
        torch.sort(values[part], dim=-1, descending=True, stable=True, out=(ordered[part], order[part]))


def draw(
    shape: Shape, ordered: Tensor, order: Tensor, sampled: Sampled, positions: Tensor, state: Slots, choice: Tensor
) -> None:
    vocab = shape.config.vocab
    drawing.draw[(len(choice),)](
        ordered, order, sampled.tokens, sampled.slots, positions, state.ints, state.reals, choice,
        VOCAB=vocab, BLOCK=min(VOCAB_BLOCK, power(vocab)), num_warps=8, **EXACT,
    )  # fmt: skip


def commit(shape: Shape, choice: Tensor, sampled: Sampled, state: Slots, results: Tensor) -> None:
    outcome.commit[(len(choice),)](
        choice, sampled.slots, state.ints, state.seen, results, VOCAB=shape.config.vocab, num_warps=1, **EXACT
    )


def tell(
    shape: Shape, logits: Tensor, choice: Tensor, sampled: Sampled, state: Slots, ids: Tensor, logprobs: Tensor
) -> None:
    vocab = shape.config.vocab
    outcome.tell[(len(choice),)](
        logits, choice, sampled.slots, state.ints, ids, logprobs,
        VOCAB=vocab, BLOCK=min(VOCAB_BLOCK, power(vocab)), num_warps=8, **EXACT,
    )  # fmt: skip


def agree(device: torch.device, tiles: Tiles, dtype: torch.dtype, kinds: Iterable[int]) -> bool:
    """Whether rows are the same to the bit among few and among so many that the wide tiles are taken, on this device:
    on numbers of which another order of additions would show. kinds: bits of the weights."""
    source = torch.Generator(device).manual_seed(1)
    rows, depth = tiles.widen_at, 2048
    x = torch.randn(rows, depth, device=device, generator=source).to(dtype)

    def same(w: Matrix) -> bool:
        products = torch.empty(2, rows, w.rows, device=device)
        gates = torch.empty(2, rows, w.rows, device=device, dtype=dtype)
        few = rows // 2
        for count, product, gate in zip((few, rows), products, gates, strict=True):
            multiply(tiles, x[:count], (w,), product[:count])
            gated(tiles, x[:count], w, w, gate[:count])
        return all(torch.equal(found[0, :few], found[1, :few]) for found in (products, gates))

    cols = 2 * max(tiles.dense.wide.cols, tiles.kept.wide.cols)
    return all(same(numbers(cols, depth, bits, dtype, source)) for bits in sorted(set(kinds)))
