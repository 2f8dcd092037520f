"""Products of each weight type on each instruction set, against numpy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, quants

from engine import _native
from tests.engine.executor.native_models import ISAS

Floats = npt.NDArray[np.float32]
DTYPES = ("F32", "F16", "Q4_1", "Q8_0")
COLS = 192


def packed(dtype: str, values: Floats) -> tuple[bytes, npt.NDArray[np.float64]]:
    """A matrix in the file's blocks, and the values that they stand for by another implementation."""
    kind = GGMLQuantizationType[dtype]
    raw = quants.quantize(values, kind)
    return raw.tobytes(), quants.dequantize(raw, kind).astype(np.float64)


def product(isa: str, dtype: str, weights: bytes, rows: int, x: Floats) -> Floats:
    found = _native.matmul(isa, dtype, weights, rows, x.shape[1], x.tobytes())
    return np.frombuffer(found, np.float32).reshape(len(x), rows)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 4, 37, 64])
@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 7, 13, 40])
def test_matmul_is_float64s_to_rounding(isa: str, dtype: str, rows: int, tokens: int) -> None:
    random = np.random.default_rng(rows * 100 + tokens)
    weights, exact = packed(dtype, random.normal(0.2, 1.0, (rows, COLS)).astype(np.float32))
    x = random.normal(0, 1, (tokens, COLS)).astype(np.float32)

    found = product(isa, dtype, weights, rows, x)

    magnitude = np.abs(x.astype(np.float64)) @ np.abs(exact).T
    assert np.max(np.abs(found - x.astype(np.float64) @ exact.T) / magnitude) < 2e-6


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_neither_the_other_tokens_nor_the_other_rows(isa: str, dtype: str) -> None:
    random = np.random.default_rng(3)
    rows = 41
    values = random.normal(0, 1, (rows, COLS)).astype(np.float32)
    x = random.normal(0, 1, (29, COLS)).astype(np.float32)
    whole = product(isa, dtype, packed(dtype, values)[0], rows, x)

    for tokens in (1, 2, 6, 8, 20):
        found = product(isa, dtype, packed(dtype, values)[0], rows, x[-tokens:].copy())
        np.testing.assert_array_equal(found, whole[-tokens:])
    for row in (0, 3, 40):
        found = product(isa, dtype, packed(dtype, values[row : row + 1])[0], 1, x)
        np.testing.assert_array_equal(found[:, 0], whole[:, row])


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_scales_are_converted_exactly(isa: str) -> None:
    """Subnormal, largest, negative and zero f16 scales of Q4_1 and Q8_0; one block a row."""
    halves = np.array([0x0001, 0x03FF, 0x7BFF, 0x8001, 0xFBFF, 0x0000, 0x3C00, 0xBC00], np.uint16)
    x = np.zeros((1, 32), np.float32)
    x[0, 7] = x[0, 23] = 1.0
    nibbles = bytes(range(16))
    q4_1 = b"".join(h.tobytes() + m.tobytes() + nibbles for h, m in zip(halves, halves[::-1], strict=True))
    scales, minima = halves.view(np.float16).astype(np.float64), halves[::-1].view(np.float16).astype(np.float64)
    found = product(isa, "Q4_1", q4_1, len(halves), x)[0]
    first, second = (np.float32(scales * q + minima) for q in (7, 0))
    np.testing.assert_allclose(found, first + second, rtol=2e-7, atol=0)

    q8_0 = b"".join(h.tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes() for h in halves)
    found = product(isa, "Q8_0", q8_0, len(halves), x)[0]
    np.testing.assert_array_equal(found, np.float32(scales * -9) + np.float32(scales * 7))


@pytest.mark.parametrize("isa", ISAS)
def test_nan_and_infinity_reach_the_output(isa: str) -> None:
    weights = np.ones((4, 32), np.float32)
    weights[1, 5], weights[2, 31] = np.nan, np.inf
    found = product(isa, "F32", weights.tobytes(), 4, np.ones((2, 32), np.float32))
    np.testing.assert_array_equal(found, [[32, np.nan, np.inf, 32]] * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"isa": "mmx"}, "isa 'mmx': this machine runs .*portable"),
        ({"dtype": "Q6_K"}, "dtype Q6_K is not one of"),
        ({"rows": 2}, "do not fit"),
        ({"cols": 31}, "do not fit"),
        ({"x": b"123"}, "do not fit"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    x = np.ones((1, 32), np.float32).tobytes()
    arguments: dict[str, Any] = {"isa": "", "dtype": "F32", "weights": x, "rows": 1, "cols": 32, "x": x}
    with pytest.raises(ValueError, match=message):
        _native.matmul(**arguments | changes)
