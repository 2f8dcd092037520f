"""SwiGLU (Shazeer, arXiv:2002.05202)."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def swiglu(gate_up, out, rows, COLS: tl.constexpr, BLOCK: tl.constexpr):
    """gate_up [rows, 2 * COLS], the gate first -> out [rows, COLS]. A program takes BLOCK values of out."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row = at // COLS
    inside = row < rows
    source = gate_up + at + row * COLS
    gate = tl.load(source, mask=inside, other=0.0)
    up = tl.load(source + COLS, mask=inside, other=0.0)
    silu = gate / (1.0 + tl.exp(-gate))
    tl.store(out + at, (silu * up).to(out.dtype.element_ty), mask=inside)
