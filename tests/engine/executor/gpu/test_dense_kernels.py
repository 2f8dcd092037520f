"""Norm, SwiGLU, embedding and matrices against torch, over random shapes, NaN where nothing is to be read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.executor.gpu import launch
from engine.executor.gpu.tiles import INTERPRETED, Tile, Tiles
from engine.executor.kernels import slot as field
from tests.engine.executor.gpu.matrices import random_matrix, values_of
from tests.engine.gguf_files import TINY

FEW = settings(max_examples=12, deadline=None)
SEEDS = st.integers(0, 1 << 30)
SMALL = Tile(16, 32, 32)
SMALL_TILES = Tiles(SMALL, SMALL, SMALL, 1 << 30)


def shape_of(hidden: int) -> launch.Shape:
    return launch.Shape(replace(TINY, hidden=hidden), 64, 4, replace(INTERPRETED, tokens=2, values=256))


def randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@FEW
@given(st.integers(1, 5), st.integers(1, 130), SEEDS, st.booleans(), st.sampled_from([torch.float32, torch.float16]))
def test_norm_adds_what_a_layer_left_and_scales(rows: int, cols: int, seed: int, add: bool, dtype: torch.dtype) -> None:
    shape = shape_of(cols)
    residual, delta, weight = randn(seed, rows, cols), randn(seed + 1, rows, cols), randn(seed + 2, cols)
    total = residual + delta if add else residual.clone()
    out = torch.full((rows, cols), math.nan, dtype=dtype)
    launch.add_norm(shape, residual, delta if add else None, weight, out)
    torch.testing.assert_close(residual, total, rtol=0, atol=0)
    expected = F.rms_norm(total, (cols,), weight, TINY.rms_eps)
    torch.testing.assert_close(out.float(), expected, rtol=2e-3 if dtype == torch.float16 else 1e-5, atol=1e-5)


def test_the_last_norm_gathers_rows_and_leaves_others_alone() -> None:
    shape = shape_of(48)
    residual, delta, weight = randn(1, 6, 48), randn(2, 6, 48), randn(3, 48)
    residual[2] = math.nan
    out = torch.full((4, 48), 7.0)
    launch.gather_norm(shape, residual, delta, weight, torch.tensor([5, -1, 0, 5], dtype=torch.int32), out)
    expected = F.rms_norm(residual + delta, (48,), weight, TINY.rms_eps)
    torch.testing.assert_close(out[[0, 2, 3]], expected[[5, 0, 5]])
    assert (out[1] == 7.0).all()
    assert torch.equal(out[0], out[3])


@FEW
@given(st.integers(1, 4), st.integers(1, 2100), SEEDS)
def test_swiglu(rows: int, cols: int, seed: int) -> None:
    both = randn(seed, rows, 2 * cols) * 4
    out = torch.full((rows, cols), math.nan)
    launch.gated(shape_of(64), both, out)
    torch.testing.assert_close(out, F.silu(both[:, :cols]) * both[:, cols:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_embedding_takes_a_row_of_the_table_or_what_the_slot_sampled_last(bits: int) -> None:
    table = random_matrix(30, 96, bits, seed=3, dtype=torch.float16 if bits == 16 else torch.float32)
    ints = torch.zeros(4, field.INTS.value, dtype=torch.int32)
    ints[2, field.LAST.value] = 17
    residual = torch.full((4, 96), 7.0)
    tokens, slots = (torch.tensor(ids, dtype=torch.int32) for ids in ([5, -1, 29, -1], [0, 2, 3, -1]))
    launch.embed_tokens(shape_of(96), tokens, slots, ints, table, residual)
    torch.testing.assert_close(residual[:3], values_of(table)[[5, 17, 29]], rtol=0, atol=0)
    assert (residual[3] == 7.0).all()


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 4), SEEDS, st.sampled_from([4, 8, 16, 32]), st.booleans())
def test_matrices_of_all_kinds(rows: int, outputs: int, groups: int, seed: int, bits: int, small: bool) -> None:
    dtype = torch.float16 if bits == 16 else torch.float32
    cols = groups * 32 if bits in (4, 8) else groups * 32 - 3
    matrix = random_matrix(outputs, cols, bits, seed, dtype)
    x = randn(seed + 1, rows, cols).to(dtype)
    out = torch.full((rows, outputs), math.nan)
    launch.multiply(SMALL_TILES if small else INTERPRETED, x, matrix, out)
    expected = x.double() @ values_of(matrix).double().T
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 40), SEEDS, st.sampled_from([4, 8, 16, 32]), st.data())
def test_a_row_of_a_product_is_the_same_alone(rows: int, seed: int, bits: int, data: st.DataObject) -> None:
    dtype = torch.float16 if bits == 16 else torch.float32
    matrix = random_matrix(50, 96, bits, seed, dtype)
    x = randn(seed + 1, rows, 96).to(dtype)
    x[data.draw(st.integers(0, rows - 1))] = math.nan
    row = data.draw(st.integers(0, rows - 1))
    together, alone = torch.empty(rows, 50), torch.empty(1, 50)
    launch.multiply(SMALL_TILES, x, matrix, together)
    launch.multiply(SMALL_TILES, x[row : row + 1].clone(), matrix, alone)
    torch.testing.assert_close(together[row], alone[0], rtol=0, atol=0, equal_nan=True)


def test_few_rows_take_the_narrow_tile_and_many_the_wide_one() -> None:
    narrow, wide = Tile(16, 32, 32), Tile(64, 64, 32)
    tiles = Tiles(narrow, wide, narrow, widen_at=64)
    assert [tiles.of(rows) for rows in (1, 63, 64, 500)] == [narrow, narrow, wide, wide]
    assert tiles.one.of(500) == narrow


def test_tiles_that_add_in_another_order_are_told_from_those_that_do_not() -> None:
    """Which decides whether a device may take both."""
    narrow, same, deeper = Tile(16, 32, 512), Tile(32, 32, 512), Tile(16, 32, 1024)
    cpu = torch.device("cpu")
    assert launch.agree(cpu, Tiles(narrow, narrow, narrow, 16), torch.float32)
    assert not launch.agree(cpu, Tiles(narrow, deeper, narrow, 16), torch.float32)
    assert Tiles(narrow, same, narrow, 16).one.wide == narrow
