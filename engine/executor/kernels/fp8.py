"""float8 e4m3 (OCP 8-bit floating point, 1.0) in integer arithmetic: the same bits on every GPU and in the
interpreter."""

import triton
import triton.language as tl


@triton.jit
def to_fp8(x):
    """float32 -> bits in uint8: to nearest, ties to even; beyond the largest, infinity too, the largest; NaN is NaN."""
    bits = x.to(tl.uint32, bitcast=True)
    sign = (bits >> 24) & 0x80
    size = bits & 0x7FFFFFFF
    bounded = tl.minimum(size, 0x43E00000)  # 448
    normal = ((bounded + 0x7FFFF + ((bounded >> 20) & 1)) >> 20) - (120 << 3)
    magnitude = bounded.to(tl.float32, bitcast=True)
    # Below 2**-6 the values are multiples of 2**-9; adding 2**23 rounds to whole ones.
    small = ((magnitude * 512.0 + 8388608.0) - 8388608.0).to(tl.uint32)
    code = tl.where(bounded < 0x3C800000, small, normal)
    code = tl.where(size > 0x7F800000, 0x7F, code)
    return (sign | code).to(tl.uint8)


@triton.jit
def from_fp8(code):
    """Bits in uint8 -> float16, exactly."""
    wide = code.to(tl.uint16)
    size = wide & 0x7F
    half = ((wide & 0x80) << 8) | (size << 7)
    value = half.to(tl.float16, bitcast=True) * 256.0
    return tl.where(size == 0x7F, float("nan"), value).to(tl.float16)
