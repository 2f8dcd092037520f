"""Causal attention of ragged rows over paged KV: chunks of prompts and decode rows in one launch.

A row's tokens are cut into tiles; a program takes a tile, one KV head with its group of query heads, and one part of
the positions. Parts and the 64 keys of an iteration begin at absolute multiples, and an iteration that a query must not
see changes none of its bits (it is multiplied by one, and zero is added): so it does not matter how a prompt was cut,
nor what else is in the tile. `merge` then takes the parts in order. Online softmax: Milakov and Gimelshein,
arXiv:1805.02867; parts: "flash decoding".
"""

import triton
import triton.language as tl

from engine.executor.kernels.fp8 import from_fp8

KEYS: tl.constexpr = tl.constexpr(64)


@triton.jit
def attend(
    queries, keys, values, table, positions, tile_slots, tile_firsts, tile_counts, sums, outputs, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TABLE: tl.constexpr, PART: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Grid: tiles, KV heads, parts. A tile: its slot, its first token of the launch, and how many (0: nothing is done).

    queries [n, HEADS, DIM]; keys, values [blocks, KV_HEADS, BLOCK_TOKENS, DIM]; table [slots, TABLE]; positions [n];
    outputs [n, HEADS, PARTS, DIM] and sums [n, HEADS, PARTS, 2] (largest score, sum of weights), float32.
    """
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    count = tl.load(tile_counts + tile)
    first = tl.load(tile_firsts + tile)
    start = tl.load(positions + first)
    end = tl.minimum(start + count, (part + 1) * PART)
    if (count > 0) & (part * PART < start + count):
        slot = tl.load(tile_slots + tile)
        m = tl.arange(0, BM)
        token = (first + m // GROUP).to(tl.int64)
        head = kv_head * GROUP + m % GROUP
        mine = m // GROUP < count
        seen = start + m // GROUP
        d = tl.arange(0, BD)
        query_at = queries + (token * HEADS + head)[:, None] * DIM + d[None, :]
        q = tl.load(query_at, mask=mine[:, None] & (d < DIM)[None, :], other=0.0)
        largest = tl.full((BM,), float("-inf"), tl.float32)
        total = tl.zeros((BM,), tl.float32)
        acc = tl.zeros((BM, BD), tl.float32)
        spoilt = tl.zeros((BM,), tl.int32)
        for base in range(part * PART, end, KEYS):
            at = base + tl.arange(0, KEYS)
            written = at < end
            block = tl.load(table + slot * TABLE + at // BLOCK_TOKENS, mask=written, other=0).to(tl.int64)
            place = (block * KV_HEADS + kv_head) * BLOCK_TOKENS + at % BLOCK_TOKENS
            within = written[:, None] & (d < DIM)[None, :]
            k = _load(keys + place[:, None] * DIM + d[None, :], within, q.dtype)
            v = _load(values + place[:, None] * DIM + d[None, :], within, q.dtype)
            visible = mine[:, None] & (at[None, :] <= seen[:, None])
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            scores = tl.where(visible, scores, float("-inf"))
            new = tl.maximum(largest, tl.max(scores, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            weights = tl.exp(scores - safe[:, None])
            keep = tl.exp(largest - safe)
            total = total * keep + tl.sum(weights, 1)
            # 0 * NaN is NaN: values that are not finite must reach those alone who see them.
            sound = (v - v) == 0.0
            bad = tl.max(tl.where(sound, 0, 1), 1)
            spoilt = tl.maximum(spoilt, tl.max(tl.where(visible & (bad[None, :] > 0), 1, 0), 1))
            acc = acc * keep[:, None] + tl.dot(weights.to(v.dtype), tl.where(sound, v, 0.0), input_precision="ieee")
            largest = new
        acc = tl.where(spoilt[:, None] > 0, float("nan"), acc)
        out = (token * HEADS + head) * PARTS + part
        tl.store(sums + out * 2, largest, mask=mine)
        tl.store(sums + out * 2 + 1, total, mask=mine)
        tl.store(outputs + out[:, None] * DIM + d[None, :], acc, mask=mine[:, None] & (d < DIM)[None, :])


@triton.jit(do_not_specialize=["rows"])
def merge(
    sums, outputs, positions, slots, out, rows,
    HEADS: tl.constexpr, DIM: tl.constexpr, PART: tl.constexpr, PARTS: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """The parts of each token and head, in order -> out [rows, HEADS, DIM]. A program takes BR heads; nothing is done
    for a slot of -1."""
    line = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    row = line // HEADS
    mine = tl.load(slots + row, mask=row < rows, other=-1) >= 0
    position = tl.load(positions + row, mask=mine, other=0)
    d = tl.arange(0, BD)
    inside = mine[:, None] & (d < DIM)[None, :]
    largest = tl.full((BR,), float("-inf"), tl.float32)
    total = tl.zeros((BR,), tl.float32)
    acc = tl.zeros((BR, BD), tl.float32)
    for part in range(tl.max(position, 0) // PART + 1):
        has = mine & (part * PART <= position)
        at = line * PARTS + part
        most = tl.load(sums + at * 2, mask=has, other=float("-inf"))
        new = tl.maximum(largest, most)
        safe = tl.where(new == float("-inf"), 0.0, new)
        keep, take = tl.exp(largest - safe), tl.exp(most - safe)
        total = total * keep + tl.load(sums + at * 2 + 1, mask=has, other=0.0) * take
        piece = tl.load(outputs + at[:, None] * DIM + d[None, :], mask=inside & has[:, None], other=0.0)
        acc = acc * keep[:, None] + piece * take[:, None]
        largest = new
    result = acc / total[:, None]
    tl.store(out + line[:, None] * DIM + d[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _load(at, mask, dtype: tl.constexpr):
    if at.dtype.element_ty == tl.uint8:
        return from_fp8(tl.load(at, mask=mask, other=0)).to(dtype)
    return tl.load(at, mask=mask, other=0.0).to(dtype)
