"""Weights of 8 and 4 bits, as the image holds them for a GPU (engine/model/gpu_image.py).

Of a matrix [rows, cols] in groups of 32 columns: int8 levels [rows, cols], or bytes [rows, cols / 2] of which byte j
has column 2j in its low and 2j + 1 in its high four bits; float16 scales [rows, cols / 32]; with 4 bits also float16
minimums of the same shape. A value is scale * level (+ minimum), in float32.
"""

import triton
import triton.language as tl

GROUP: tl.constexpr = tl.constexpr(32)


@triton.jit
def load_tile(
    levels, scales, minimums, row, col, groups, BITS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, inside
):  # fmt: skip
    """Values [BN, BK], float32, at rows `row` [BN] and the BK columns from `col` on, a multiple of 32; 0 where a row is
    not `inside` [BN], or a column not within the matrix's `groups` of 32."""
    cols = groups * GROUP
    row = row.to(tl.int64)[:, None]
    group = col // GROUP + tl.arange(0, BK // GROUP)[None, :]
    known = inside[:, None] & (group < groups)
    scale = tl.load(scales + row * groups + group, mask=known, other=0.0).to(tl.float32)
    if BITS == 8:
        at = col + tl.arange(0, BK)[None, :]
        level = tl.load(levels + row * cols + at, mask=inside[:, None] & (at < cols), other=0).to(tl.float32)
    else:
        at = col // 2 + tl.arange(0, BK // 2)[None, :]
        pair = tl.load(levels + row * (cols // 2) + at, mask=inside[:, None] & (at < cols // 2), other=0)
        level = tl.interleave(pair & 0x0F, pair >> 4).to(tl.float32)
    level = level * _spread(scale, BN, BK)
    if BITS == 4:
        minimum = tl.load(minimums + row * groups + group, mask=known, other=0.0).to(tl.float32)
        level = level + _spread(minimum, BN, BK)
    return level


@triton.jit
def _spread(values, BN: tl.constexpr, BK: tl.constexpr):
    """[BN, BK / 32] -> [BN, BK]"""
    return tl.reshape(tl.broadcast_to(values[:, :, None], (BN, BK // GROUP, GROUP)), (BN, BK))
