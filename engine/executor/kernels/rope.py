"""Rotary positions (Su et al., arXiv:2104.09864) on queries and keys, and the new keys and values into the pool."""

import triton
import triton.language as tl

from engine.executor.kernels.fp8 import to_fp8


@triton.jit(do_not_specialize=["rows"])
def rope_and_store(
    qkv, angles, positions, slots, table, queries, keys, values, rows,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TABLE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Pair (2i, 2i + 1) of a head turns by angles [context, 2, DIM / 2]: cosines, then sines. A program takes BR heads.

    qkv [rows, HEADS + 2 * KV_HEADS, DIM], positions and slots [rows] (a slot of -1: nothing is done), table
    [slots, TABLE] of block ids; queries [rows, HEADS, DIM]; keys and values [blocks, KV_HEADS, BLOCK_TOKENS, DIM] of
    the layer.
    """
    ALL: tl.constexpr = HEADS + 2 * KV_HEADS
    line = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    row, head = line // ALL, (line % ALL)[:, None]
    slot = tl.load(slots + row, mask=row < rows, other=-1)
    mine = slot >= 0
    position = tl.load(positions + row, mask=mine, other=0)
    pair = tl.arange(0, BP)[None, :]
    inside = mine[:, None] & (pair < DIM // 2)
    source = qkv + line[:, None] * DIM + 2 * pair
    even = tl.load(source, mask=inside, other=0.0)
    odd = tl.load(source + 1, mask=inside, other=0.0)
    turn = angles + position[:, None] * DIM + pair
    cosine = tl.load(turn, mask=inside, other=0.0)
    sine = tl.load(turn + DIM // 2, mask=inside, other=0.0)
    first, second = even * cosine - odd * sine, even * sine + odd * cosine
    _store(queries + row[:, None] * HEADS * DIM + head * DIM + 2 * pair, first, second, inside & (head < HEADS))

    block = tl.load(table + slot * TABLE + position // BLOCK_TOKENS, mask=mine, other=0).to(tl.int64)
    base = (block * KV_HEADS * BLOCK_TOKENS + position % BLOCK_TOKENS)[:, None] * DIM + 2 * pair
    key_at = keys + base + (head - HEADS) * BLOCK_TOKENS * DIM
    _store(key_at, first, second, inside & (head >= HEADS) & (head < HEADS + KV_HEADS))
    value_at = values + base + (head - HEADS - KV_HEADS) * BLOCK_TOKENS * DIM
    _store(value_at, even, odd, inside & (head >= HEADS + KV_HEADS))


@triton.jit
def _store(at, first, second, mask):
    if at.dtype.element_ty == tl.uint8:
        tl.store(at, to_fp8(first), mask=mask)
        tl.store(at + 1, to_fp8(second), mask=mask)
    else:
        tl.store(at, first.to(at.dtype.element_ty), mask=mask)
        tl.store(at + 1, second.to(at.dtype.element_ty), mask=mask)
