"""Random matrices as a GPU's image holds them, and what they are worth."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.executor.gpu.matrix import GROUP, Matrix, of_parts


def random_matrix(rows: int, cols: int, bits: int, seed: int, dtype: torch.dtype = torch.float32) -> Matrix:
    source = torch.Generator().manual_seed(seed)
    if bits not in (4, 8):
        return of_parts(rows, cols, bits, (torch.randn(rows, cols, generator=source).to(dtype),))
    scales = (torch.rand(rows, cols // GROUP, generator=source) * 0.02).half()
    if bits == 8:
        levels = torch.randint(-127, 128, (rows, cols), generator=source, dtype=torch.int8)
        return of_parts(rows, cols, bits, (levels, scales))
    pairs = torch.randint(0, 256, (rows, cols // 2), generator=source, dtype=torch.uint8)
    return of_parts(rows, cols, bits, (pairs, scales, torch.randn(rows, cols // GROUP, generator=source).half()))


def values_of(matrix: Matrix) -> Tensor:
    """[rows, cols], float32"""
    if matrix.bits not in (4, 8):
        return matrix.values.float()
    levels = matrix.values.float()
    if matrix.bits == 4:
        levels = torch.stack([matrix.values & 15, matrix.values >> 4], -1).flatten(1).float()
    grouped = levels.view(matrix.rows, -1, GROUP) * matrix.scales.float()[..., None]
    if matrix.bits == 4:
        grouped += matrix.minimums.float()[..., None]
    return grouped.view(matrix.rows, matrix.cols)
