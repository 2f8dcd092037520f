"""e4m3 in integers is torch's, for every value that there is."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from engine.executor.kernels.fp8 import from_fp8, to_fp8


@triton.jit  # type: ignore[untyped-decorator]
def _encode(source: Any, out: Any, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(out + at, to_fp8(tl.load(source + at)))


@triton.jit  # type: ignore[untyped-decorator]
def _decode(source: Any, out: Any, N: tl.constexpr) -> None:
    at = tl.arange(0, N)
    tl.store(out + at, from_fp8(tl.load(source + at)))


def encoded(values: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(len(values), dtype=torch.uint8)
    _encode[(1,)](values, out, N=len(values))
    return out


def test_every_code_has_its_value() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    out = torch.zeros(256, dtype=torch.float16)
    _decode[(1,)](codes, out, N=256)
    expected = codes.view(torch.float8_e4m3fn).half()
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_values_go_to_the_nearest_code_and_halves_to_the_even_one() -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    ties = torch.cat([every, every * (1 + 2**-9), every * (1 - 2**-9), torch.randn(1 << 15)])
    ties = ties[torch.isfinite(ties) & (ties.abs() <= 448)]
    ties = torch.cat([ties, torch.zeros((1 << (len(ties) - 1).bit_length()) - len(ties))])
    assert torch.equal(encoded(ties), ties.to(torch.float8_e4m3fn).view(torch.uint8))


def test_what_is_too_large_is_the_largest_and_nan_stays() -> None:
    values = torch.tensor([449.0, -1e30, math.inf, -math.inf, math.nan, 0.0, -0.0, 2.0**-10])
    assert encoded(values).tolist()[:4] == [0x7E, 0xFE, 0x7E, 0xFE]
    assert encoded(values)[4] & 0x7F == 0x7F
    assert encoded(values).tolist()[5:] == [0, 0x80, 0]
