"""x @ w.T, for weights of 16 or 32 bits and for those of 8 and 4.

Why not torch.matmul: cuBLAS chooses its kernel, and with it the order of additions, by the number of rows, so that a
sequence's bits would depend on what runs beside it. Here each element is one chain: its K in ascending order, in the
accumulator of one tensor-core instruction, whatever the tile. Two tiles are used, a narrow one for few rows (which
reads the weights once, over many programs) and a wide one for many; a test of the compiled
code holds both to one instruction (tests/engine/executor/gpu/compile_kernels.py).

Few rows are bound by how many bytes of weights are on their way at a time. So matrices that multiply the same rows are
one launch: programs of a small one (keys, values) run beside those of a large one, and there are fewer ends of launches
to wait for.

The matrices' sizes are no constants: so that all matrices of a dtype, of every model, are one compilation.
"""

import triton
import triton.language as tl

from engine.executor.kernels.dequantise import load_tile


@triton.jit(do_not_specialize=["rows"])
def matmul(
    x, w0, scales0, minimums0, w1, scales1, minimums1, w2, scales2, minimums2, out, rows, cols0, cols1, cols2,
    depth, groups, stride,
    BITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """x [rows, depth], up to three matrices [cols, depth] of BITS bits -> out [rows, all cols], whose rows are `stride`
    apart. cols: 0 where there is no second, or third. groups: depth / 32, where BITS are 8 or 4. Grid: tiles of rows
    first, so that neighbours share weights; then those of the matrices, each matrix's from a new one on."""
    tile = tl.program_id(1)
    tiles0, tiles1 = tl.cdiv(cols0, BN), tl.cdiv(cols1, BN)
    which = (tile >= tiles0).to(tl.int32) + (tile >= tiles0 + tiles1).to(tl.int32)
    w, scales = _pick(which, w0, w1, w2), _pick(which, scales0, scales1, scales2)
    minimums, cols = _pick(which, minimums0, minimums1, minimums2), _pick(which, cols0, cols1, cols2)
    n = (tile - _pick(which, 0, tiles0, tiles0 + tiles1)) * BN + tl.arange(0, BN)
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        a = _rows(x, m, start, rows, depth, BK)
        b = _weights(w, scales, minimums, n, start, depth, groups, cols, a.dtype, BITS, BN, BK)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    at = out + m[:, None] * stride + (_pick(which, 0, cols0, cols0 + cols1) + n)[None, :]
    tl.store(at, acc.to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < cols)[None, :])


@triton.jit(do_not_specialize=["rows"])
def gated(
    x, gate, gate_scales, gate_minimums, up, up_scales, up_minimums, out, rows, cols, depth, groups,
    GATE_BITS: tl.constexpr, UP_BITS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """SwiGLU (Shazeer, arXiv:2002.05202): x [rows, depth], gate and up [cols, depth] -> out [rows, cols], in float32
    until it is stored."""
    m = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    left, right = tl.zeros((BM, BN), tl.float32), tl.zeros((BM, BN), tl.float32)
    for start in range(0, depth, BK):
        a = _rows(x, m, start, rows, depth, BK)
        b = _weights(gate, gate_scales, gate_minimums, n, start, depth, groups, cols, a.dtype, GATE_BITS, BN, BK)
        left = tl.dot(a, b, left, input_precision="ieee")
        b = _weights(up, up_scales, up_minimums, n, start, depth, groups, cols, a.dtype, UP_BITS, BN, BK)
        right = tl.dot(a, b, right, input_precision="ieee")
    silu = left / (1.0 + tl.exp(-left))
    at = out + m[:, None] * cols + n[None, :]
    tl.store(at, (silu * right).to(out.dtype.element_ty), mask=(m < rows)[:, None] & (n < cols)[None, :])


@triton.jit
def _pick(which, first, second, third):
    return tl.where(which == 0, first, tl.where(which == 1, second, third))


@triton.jit
def _rows(x, m, start, rows, depth, BK: tl.constexpr):
    """[BM, BK]"""
    k = start + tl.arange(0, BK)
    return tl.load(x + m[:, None] * depth + k[None, :], mask=(m < rows)[:, None] & (k < depth)[None, :], other=0.0)


@triton.jit
def _weights(
    w, scales, minimums, n, start, depth, groups, cols, dtype: tl.constexpr, BITS: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """[BK, BN]; of few bits rounded to what they are multiplied with."""
    if BITS >= 16:
        k = start + tl.arange(0, BK)
        at = w + n.to(tl.int64)[None, :] * depth + k[:, None]
        tile = tl.load(at, mask=(n < cols)[None, :] & (k < depth)[:, None], other=0.0)
    else:
        tile = tl.trans(load_tile(w, scales, minimums, n, start, groups, BITS, BN, BK, n < cols).to(dtype))
    return tile
