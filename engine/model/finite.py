"""Whether the numbers of a tensor are numbers: one NaN or infinity among weights spoils every answer."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from itertools import compress
from math import isfinite
from types import MappingProxyType
from typing import Final

from engine.model.gguf import BLOCKS

_HALVES: Final[Mapping[str, tuple[int, ...]]] = MappingProxyType(
    {"F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}
)
"""dtype -> where a block has numbers of 16 bits (scale, minimum). ggml-common.h of https://github.com/ggml-org/ggml."""
_FINITE_HALF: Final = bytes(byte for byte in range(256) if byte & 0x7C != 0x7C)
"""High bytes of float16 numbers that are finite."""
_SMALL_FLOAT: Final = bytes(byte for byte in range(256) if byte & 0x7F != 0x7F)
"""High bytes of float32 numbers below 1.7e38."""


def not_finite(dtype: str, data: bytes) -> int | None:
    """The first block that holds NaN or infinity; None where there is none, and for types that are not looked into.

    data: the tensor as GGUF has it. Takes about 1 ms a MiB.
    """
    if dtype == "F32":
        return _float(data)
    size = BLOCKS[dtype][1]
    bad = [found for at in _HALVES.get(dtype, ()) if (found := _first(data[at + 1 :: size], _FINITE_HALF)) is not None]
    return min(bad, default=None)


def _first(high: bytes, harmless: bytes) -> int | None:
    if not high.translate(None, harmless):
        return None
    return next(index for index, byte in enumerate(high) if byte not in harmless)


def _float(data: bytes) -> int | None:
    if not data[3::4].translate(None, _SMALL_FLOAT):
        return None
    values = array("f", data)
    if sys.byteorder != "little":
        values.byteswap()
    return next(compress(range(len(values)), (not isfinite(value) for value in values)), None)
