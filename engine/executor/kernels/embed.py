"""Token ids to the first residual stream."""

import triton
import triton.language as tl

from engine.executor.kernels import slot as field
from engine.executor.kernels.dequantise import GROUP, load_tile


@triton.jit(do_not_specialize=["rows"])
def embed(
    tokens, slots, ints, table, scales, minimums, residual, rows,
    COLS: tl.constexpr, BITS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """residual [rows, COLS] = rows `tokens` [rows] of the table [vocab, COLS]; -1 stands for what its slot sampled
    last.

    slots [rows]: rows of none (-1) are left alone. ints: kernels/slot.py. BITS of the table: 16 also stands for 32.
    A program takes BR rows.
    """
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    slot = tl.load(slots + row, mask=row < rows, other=-1)
    mine = slot >= 0
    token = tl.load(tokens + row, mask=mine, other=0)
    token = tl.where(token < 0, tl.load(ints + slot * field.INTS + field.LAST, mask=mine, other=0), token)
    col = tl.arange(0, BC)[None, :]
    inside = mine[:, None] & (col < COLS)
    if BITS == 16:
        values = tl.load(table + token.to(tl.int64)[:, None] * COLS + col, mask=inside, other=0.0).to(tl.float32)
    else:
        values = load_tile(table, scales, minimums, token, 0, COLS // GROUP, BITS, BR, BC, mine)
    tl.store(residual + row.to(tl.int64)[:, None] * COLS + col, values, mask=inside)
