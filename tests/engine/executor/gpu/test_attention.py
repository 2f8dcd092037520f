"""Ragged attention over paged KV against torch: groups, chunks, tables with holes, poison where nothing was written."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.executor.gpu import launch
from engine.executor.gpu.tiles import INTERPRETED
from tests.engine.gguf_files import TINY

SLOTS, CONTEXT, BLOCKS = 4, 272, 80


@dataclass
class Pool:
    """A layer's KV, NaN until written, and the tables of slots, whose blocks lie anywhere."""

    shape: launch.Shape
    dtype: torch.dtype

    def __post_init__(self) -> None:
        config = self.shape.config
        kv = (BLOCKS, config.kv_heads, 16, config.head_dim)
        poison = 0x7F if self.dtype == torch.uint8 else math.nan
        self.keys, self.values = torch.full(kv, poison, dtype=self.dtype), torch.full(kv, poison, dtype=self.dtype)
        order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(1)).int()
        self.table = order[: SLOTS * self.shape.table].view(SLOTS, -1).clone()
        turns = torch.arange(CONTEXT)[:, None] * 10.0 ** -torch.arange(0, config.head_dim, 2)[None, :]
        self.angles = torch.cat([turns.cos(), turns.sin()], 1)

    def run(self, qkv: torch.Tensor, rows: list[tuple[int, int, int]], padding: int = 0) -> torch.Tensor:
        """qkv [n, heads + 2 kv_heads, head_dim] of rows (slot, start, count) -> [n, heads, head_dim]"""
        config, shape = self.shape.config, self.shape
        places = [(slot, start + i) for slot, start, count in rows for i in range(count)] + [(-1, -1)] * padding
        slots, positions = torch.tensor(places, dtype=torch.int32).T.contiguous()
        qkv = torch.cat([qkv, torch.full((padding, *qkv.shape[1:]), math.nan)])
        n = len(places)
        dtype = torch.float16 if self.dtype == torch.float16 else torch.float32
        queries = torch.full((n, config.heads, config.head_dim), math.nan, dtype=dtype)
        launch.rope_and_store(shape, qkv, self.angles, positions, slots, self.table, queries, self.keys, self.values)
        tiles, first = [], 0
        for slot, _, count in rows:
            for at in range(0, count, shape.tile_tokens):
                tiles.append((slot, first + at, min(shape.tile_tokens, count - at)))
            first += count
        tiles += [(0, 0, 0)] * padding
        tiled = launch.Tiled(*torch.tensor(tiles, dtype=torch.int32).T.contiguous())
        sums = torch.full((n, config.heads, shape.parts, 2), math.nan)
        outputs = torch.full((n, config.heads, shape.parts, config.head_dim), math.nan)
        out = torch.full_like(queries, math.nan)
        launch.attend(shape, queries, self.keys, self.values, self.table, positions, slots, tiled, sums, outputs, out)
        return out[: n - padding]

    def rope(self, vectors: torch.Tensor) -> torch.Tensor:
        """[n, heads, head_dim], at positions from 0 on"""
        half = self.shape.config.head_dim // 2
        cosine, sine = self.angles[: len(vectors), None, :half], self.angles[: len(vectors), None, half:]
        even, odd = vectors[..., ::2], vectors[..., 1::2]
        return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)

    def stored(self, values: torch.Tensor) -> torch.Tensor:
        if self.dtype == torch.uint8:
            return values.to(torch.float8_e4m3fn).float()
        return values.to(self.dtype).float()

    def oracle(self, qkv: torch.Tensor) -> torch.Tensor:
        """A whole sequence [n, ...] -> [n, heads, head_dim], in float64."""
        config = self.shape.config
        queries, keys, values = torch.split(qkv, [config.heads, config.kv_heads, config.kv_heads], 1)
        queries = self.rope(queries).to(torch.float16 if self.dtype == torch.float16 else torch.float32).double()
        keys, values = self.stored(self.rope(keys)).double(), self.stored(values).double()
        keys, values = (part.repeat_interleave(self.shape.group, 1) for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(config.head_dim)
        future = torch.ones(len(qkv), len(qkv)).triu(1).bool()
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(future, -math.inf).softmax(-1), values)


def make(kv_heads: int, group: int, dim: int, dtype: torch.dtype = torch.float32, part: int = 128) -> Pool:
    config = replace(TINY, heads=kv_heads * group, kv_heads=kv_heads, head_dim=dim)
    return Pool(launch.Shape(config, CONTEXT, SLOTS, INTERPRETED, part), dtype)


def sequence(pool: Pool, length: int, seed: int) -> torch.Tensor:
    config = pool.shape.config
    shape = (length, config.heads + 2 * config.kv_heads, config.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@st.composite
def cuts(draw: st.DrawFn, length: int) -> list[int]:
    found: list[int] = []
    while sum(found) < length:
        found.append(min(draw(st.sampled_from([1, 1, 7, 16, 33, 90])), length - sum(found)))
    return found


@settings(max_examples=3, deadline=None)
@given(
    st.sampled_from([(1, 1, 16), (2, 3, 16), (1, 4, 32), (3, 2, 80), (1, 9, 16)]),
    st.sampled_from([torch.float32, torch.float16, torch.uint8]),
    st.lists(st.integers(1, 100), min_size=1, max_size=2),
    st.integers(0, 3),
    st.data(),
)
def test_ragged_rows_equal_whole_sequences_and_sequences_alone_bit_for_bit(
    heads: tuple[int, int, int], dtype: torch.dtype, lengths: list[int], padding: int, data: st.DataObject
) -> None:
    together, alone = make(*heads, dtype), make(*heads, dtype)
    texts = [sequence(together, length, seed) for seed, length in enumerate(lengths)]
    waiting = [data.draw(cuts(length)) for length in lengths]
    done = [0] * len(texts)
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    while any(waiting):
        rows = [(slot, done[slot], cut.pop(0)) for slot, cut in enumerate(waiting) if cut]
        qkv = torch.cat([texts[slot][start : start + count] for slot, start, count in rows])
        parts = torch.split(together.run(qkv, rows, padding), [count for _, _, count in rows])
        for (slot, _, count), part in zip(rows, parts, strict=True):
            found[slot].append(part)
            done[slot] += count
    tolerance = 5e-3 if dtype == torch.float16 else 1e-5
    for slot, text in enumerate(texts):
        whole = alone.run(text, [((slot + 1) % SLOTS, 0, len(text))])
        torch.testing.assert_close(torch.cat(found[slot]), whole, rtol=0, atol=0)
        torch.testing.assert_close(whole.double(), alone.oracle(text), rtol=tolerance, atol=tolerance)


def test_a_prefix_in_shared_blocks_is_as_good_as_ones_own() -> None:
    pool = make(2, 3, 16)
    text = sequence(pool, 100, 5)
    whole = pool.run(text, [(0, 0, 100)])
    pool.table[1, :4] = pool.table[0, :4]
    torch.testing.assert_close(pool.run(text[64:], [(1, 64, 36)]), whole[64:], rtol=0, atol=0)


def test_a_pool_larger_than_32_bits_count_is_reached_to_its_end() -> None:
    """Of fp8, where an offset is a byte. The system gives memory only to the blocks that are touched."""
    near, far = make(1, 2, 16, torch.uint8), make(1, 2, 16, torch.uint8)
    blocks = (1 << 32) // (16 * 16) + BLOCKS
    far.keys, far.values = (torch.empty(blocks, 1, 16, 16, dtype=torch.uint8) for _ in range(2))
    far.table += blocks - BLOCKS
    far.table[:, 1] -= 1 << 23  # a block in the midst, beyond 31 bits
    text = sequence(near, 40, 7)
    assert torch.equal(far.run(text, [(1, 0, 40)]), near.run(text, [(1, 0, 40)]))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_reach_those_who_see_them_and_nobody_else(value: float) -> None:
    pool = make(1, 2, 16)
    text, sound = sequence(pool, 40, 1), sequence(pool, 40, 2)
    expected = pool.run(torch.cat([text, sound]), [(0, 0, 40), (1, 0, 40)])
    text[30, -1, 3] = value
    found = pool.run(torch.cat([text, sound]), [(2, 0, 40), (3, 0, 40)])
    assert torch.equal(found[:30], expected[:30])
    assert not torch.isfinite(found[30:40]).all(-1).any()
    assert torch.equal(found[40:], expected[40:])
