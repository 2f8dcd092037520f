"""A weight matrix on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GROUP = 32
"""Columns under one scale."""


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: int
    cols: int
    bits: int
    """16, or 32 where the executor computes in float32; 8 or 4: levels in groups of 32 columns."""
    values: Tensor
    """[rows, cols]; of 4 bits uint8 [rows, cols / 2] (kernels/dequantise.py)."""
    scales: Tensor
    """float16 [rows, cols / 32]; unused, and the values themselves, with 16 bits and more."""
    minimums: Tensor
    """The same with 4 bits."""

    @property
    def nbytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.parts)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """In the order in which the image holds them."""
        return (self.values, self.scales, self.minimums)[: {8: 2, 4: 3}.get(self.bits, 1)]

    def slice(self, start: int, rows: int) -> Matrix:
        """Rows from `start` on: the same memory."""
        parts = (part[start : start + rows] for part in (self.values, self.scales, self.minimums))
        return Matrix(rows, self.cols, self.bits, *parts)


def shapes(rows: int, cols: int, bits: int, dense: torch.dtype) -> tuple[tuple[torch.dtype, int, int], ...]:
    """dtype, rows and columns of a matrix's parts. Raises ValueError where groups do not divide the columns."""
    if bits not in (4, 8):
        return ((dense, rows, cols),)
    if cols % GROUP:
        raise ValueError(f"{cols} columns are no multiple of {GROUP}")
    scale = (torch.float16, rows, cols // GROUP)
    return ((torch.int8, rows, cols), scale) if bits == 8 else ((torch.uint8, rows, cols // 2), scale, scale)


def of_parts(rows: int, cols: int, bits: int, parts: tuple[Tensor, ...]) -> Matrix:
    return Matrix(rows, cols, bits, parts[0], parts[min(1, len(parts) - 1)], parts[-1])


def randomise(matrix: Matrix, source: torch.Generator) -> None:
    """Values such that what is multiplied keeps its size. source: of the matrix's device."""
    size = matrix.cols**-0.5
    if matrix.bits not in (4, 8):
        matrix.values.normal_(0, size, generator=source)
    elif matrix.bits == 8:
        matrix.values.random_(-127, 128, generator=source)
        matrix.scales.fill_(size / 64)
    else:
        matrix.values.random_(0, 256, generator=source)
        matrix.scales.fill_(size / 4)
        matrix.minimums.fill_(-size * 2)


def numbers(rows: int, cols: int, bits: int, dense: torch.dtype, source: torch.Generator) -> Matrix:
    """A random one, on the generator's device."""
    made = shapes(rows, cols, bits, dense)
    parts = tuple(torch.empty(rows, cols, dtype=dtype, device=source.device) for dtype, rows, cols in made)
    matrix = of_parts(rows, cols, bits, parts)
    randomise(matrix, source)
    return matrix
