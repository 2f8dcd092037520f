"""The residual stream and RMSNorm (Zhang and Sennrich, arXiv:1910.07467), in float32. A program takes BR rows."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def add_norm(
    residual, delta, weight, out, rows,
    COLS: tl.constexpr, EPS: tl.constexpr, ADD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """residual [rows, COLS] += delta [rows, COLS], unless not ADD; out [rows, COLS] = its norm."""
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    col = tl.arange(0, BC)[None, :]
    inside = (row < rows)[:, None] & (col < COLS)
    at = row.to(tl.int64)[:, None] * COLS + col
    x = tl.load(residual + at, mask=inside, other=0.0)
    if ADD:
        x += tl.load(delta + at, mask=inside, other=0.0)
        tl.store(residual + at, x, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / COLS + EPS)
    normed = x * scale[:, None] * tl.load(weight + col, mask=col < COLS, other=0.0)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def gather_norm(
    residual, delta, weight, index, out, rows,
    COLS: tl.constexpr, EPS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out [rows, COLS] = the norm of rows `index` [rows] of residual + delta; those of a negative index are left
    alone."""
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    source = tl.load(index + row, mask=row < rows, other=-1)
    col = tl.arange(0, BC)[None, :]
    inside = (source >= 0)[:, None] & (col < COLS)
    at = source.to(tl.int64)[:, None] * COLS + col
    x = tl.load(residual + at, mask=inside, other=0.0) + tl.load(delta + at, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / COLS + EPS)
    normed = x * scale[:, None] * tl.load(weight + col, mask=col < COLS, other=0.0)
    tl.store(out + row.to(tl.int64)[:, None] * COLS + col, normed.to(out.dtype.element_ty), mask=inside)
