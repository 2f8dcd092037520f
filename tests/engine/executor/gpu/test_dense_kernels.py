"""Norm, embedding, matrices and SwiGLU against torch, over random shapes, NaN where nothing is to be read."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.executor.gpu import launch
from engine.executor.gpu.matrix import Matrix
from engine.executor.gpu.tiles import INTERPRETED, Pair, Tile, Tiles
from engine.executor.kernels import slot as field
from tests.engine.executor.gpu.matrices import random_matrix, values_of
from tests.engine.gguf_files import TINY

FEW = settings(max_examples=12, deadline=None)
SEEDS = st.integers(0, 1 << 30)
SMALL = Tile(16, 32, 32)
BITS = st.sampled_from([4, 8, 16, 32])


def tiles(narrow: Tile, wide: Tile, widen_at: int = 1 << 30, **more: int) -> Tiles:
    return Tiles(Pair(narrow, wide), Pair(narrow, wide), widen_at, **more)


SMALL_TILES = tiles(SMALL, SMALL)


def shape_of(hidden: int) -> launch.Shape:
    return launch.Shape(replace(TINY, hidden=hidden), 64, 4, replace(INTERPRETED, tokens=2))


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
@given(
    st.integers(1, 40), st.lists(st.tuples(st.integers(1, 70), BITS), min_size=1, max_size=3), st.integers(1, 4), SEEDS,
    st.booleans(),
)  # fmt: skip
def test_matrices_of_all_kinds_side_by_side(
    rows: int, matrices: list[tuple[int, int]], groups: int, seed: int, small: bool
) -> None:
    """One launch for neighbours of a kind, whose sizes tiles need not divide; what lies beside them is left alone."""
    few = any(bits in (4, 8) for _, bits in matrices)
    half = all(bits != 32 for _, bits in matrices)
    dtype, cols = torch.float16 if half else torch.float32, groups * 32 - (0 if few else 3)
    made = [random_matrix(n, cols, 16 if bits == 32 else bits, seed + i, dtype) for i, (n, bits) in enumerate(matrices)]
    x = randn(seed + 9, rows, cols).to(dtype)
    outputs = sum(matrix.rows for matrix in made)
    wide = torch.full((rows, outputs + 2), math.nan)
    launch.multiply(SMALL_TILES if small else INTERPRETED, x, made, wide[:, 1:-1])
    expected = torch.cat([x.double() @ multiplied(matrix, dtype).T for matrix in made], 1)
    torch.testing.assert_close(wide[:, 1:-1].double(), expected, rtol=1e-5, atol=1e-4)
    assert wide[:, (0, -1)].isnan().all()


def multiplied(matrix: Matrix, dtype: torch.dtype) -> torch.Tensor:
    """What of it is multiplied: few bits are rounded to the dtype."""
    return values_of(matrix).to(dtype).double()


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 3), SEEDS, BITS, BITS, st.booleans())
def test_swiglu_of_two_products(
    rows: int, outputs: int, groups: int, seed: int, gate: int, up: int, small: bool
) -> None:
    dtype = torch.float16 if {gate, up} <= {4, 8, 16} else torch.float32
    gates, ups = (random_matrix(outputs, groups * 32, min(n, 16), seed + n, dtype) for n in (gate, up))
    x = randn(seed + 1, rows, groups * 32).to(dtype)
    out = torch.full((rows, outputs), math.nan)
    launch.gated(SMALL_TILES if small else INTERPRETED, x, gates, ups, out)
    left, right = (x.double() @ multiplied(matrix, dtype).T for matrix in (gates, ups))
    torch.testing.assert_close(out.double(), F.silu(left) * right, rtol=1e-4, atol=1e-3)


@settings(max_examples=4, deadline=None)
@given(st.integers(1, 40), SEEDS, BITS, st.data())
def test_a_row_of_a_product_is_the_same_alone(rows: int, seed: int, bits: int, data: st.DataObject) -> None:
    dtype = torch.float16 if bits == 16 else torch.float32
    matrix = random_matrix(50, 96, bits, seed, dtype)
    x = randn(seed + 1, rows, 96).to(dtype)
    x[data.draw(st.integers(0, rows - 1))] = math.nan
    row = data.draw(st.integers(0, rows - 1))
    one = tiles(Tile(16, 64, 64), Tile(16, 64, 64))
    together, alone = torch.empty(rows, 100), torch.empty(1, 50)
    launch.multiply(one, x, (matrix, matrix), together)
    launch.multiply(one, x[row : row + 1].clone(), (matrix,), alone)
    torch.testing.assert_close(together[row].view(2, 50), alone.expand(2, 50), rtol=0, atol=0, equal_nan=True)
    gates = torch.empty(rows, 50)
    launch.gated(one, x, matrix, matrix, gates)
    launch.gated(one, x[row : row + 1].clone(), matrix, matrix, alone)
    torch.testing.assert_close(gates[row], alone[0], rtol=0, atol=0, equal_nan=True)


def test_few_rows_take_the_narrow_tile_and_many_the_wide_one() -> None:
    narrow, wide, deep = Tile(16, 32, 32), Tile(64, 64, 32), Tile(16, 32, 32, stages=8)
    some = Tiles(Pair(narrow, wide, deep), Pair(SMALL, SMALL), widen_at=64, multiprocessors=4)
    assert [some.of(16, rows, 1000) for rows in (1, 63, 64, 500)] == [narrow, narrow, wide, wide]
    assert [some.of(16, rows, 128) for rows in (1, 16, 17)] == [deep, deep, narrow], "by the number of programs"
    assert some.of(16, 1, 64, paired=True) == deep.paired == Tile(16, 16, 32, stages=8)
    assert some.of(8, 1, 1000) == SMALL
    assert some.one.of(16, 500, 1000) == narrow


def test_tiles_that_add_in_another_order_are_told_from_those_that_do_not() -> None:
    """Which decides whether a device may take both; asked of the kinds of weights that there are."""
    narrow, same, deeper = Tile(16, 64, 512), Tile(16, 64, 512, stages=1), Tile(16, 64, 1024)
    cpu = torch.device("cpu")
    assert launch.agree(cpu, tiles(narrow, same, 16), torch.float32, (16, 4))
    for dense, kept, kind, other in ((deeper, same, 16, 8), (same, deeper, 8, 16)):
        pairs = Tiles(Pair(narrow, dense), Pair(narrow, kept), 16)
        assert not launch.agree(cpu, pairs, torch.float32, (kind,))
        assert launch.agree(cpu, pairs, torch.float32, (other,))
        assert pairs.one == tiles(narrow, narrow, 16)
