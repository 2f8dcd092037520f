"""x @ w.T, for weights of 16 or 32 bits and for those of 8 and 4.

Why not torch.matmul: cuBLAS chooses its kernel, and with it the order of additions, by the number of rows, so that a
sequence's bits would depend on what runs beside it. Here each element is one chain: its K in ascending order, in the
accumulator of one tensor-core instruction, whatever the tile. Two tiles are used, a narrow one for few rows (which
reads the weights once, over many programs) and a wide one for many; a test of the compiled
code holds both to one instruction (tests/engine/executor/gpu/compile_kernels.py).

The matrix's sizes are no constants: so that all matrices of a dtype, of every model, are one compilation.
"""

import triton
import triton.language as tl

from engine.executor.kernels.dequantise import GROUP, load_tile


@triton.jit(do_not_specialize=["rows"])
def matmul(
    x, w, out, rows, cols, depth, stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x [rows, depth], w [cols, depth] of one dtype -> out [rows, cols], whose rows are `stride` apart. Grid: tiles of
    rows first, so that neighbours share weights."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    n = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        inside = start + k < depth
        a = tl.load(x + m[:, None] * depth + start + k[None, :], mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        b = tl.load(w + n[None, :] * depth + start + k[:, None], mask=(n < cols)[None, :] & inside[:, None], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    _store(acc, out, m, n, rows, cols, stride)


@triton.jit(do_not_specialize=["rows"])
def matmul_quantised(
    x, levels, scales, minimums, out, rows, cols, groups, stride,
    BITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same for weights of BITS bits in `groups` of 32 columns (dequantise.py), rounded to x's dtype before they are
    multiplied."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    depth = groups * GROUP
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        inside = start + k < depth
        a = tl.load(x + m[:, None] * depth + start + k[None, :], mask=(m < rows)[:, None] & inside[None, :], other=0.0)
        b = load_tile(levels, scales, minimums, n, start, groups, BITS, BN, BK, n < cols)
        acc = tl.dot(a, tl.trans(b.to(a.dtype)), acc, input_precision="ieee")
    _store(acc, out, m, n, rows, cols, stride)


@triton.jit
def _store(acc, out, m, n, rows, cols, stride):
    at = out + m.to(tl.int64)[:, None] * stride + n[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < cols)[None, :])
