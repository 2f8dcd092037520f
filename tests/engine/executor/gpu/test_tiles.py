"""Tiles fit into the shared memory of every GPU that there is, and are as large as that lets them be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from engine.executor.gpu.tiles import (
    AMPERE,
    BARRIERS,
    DEEPEST,
    HOPPER,
    KEYS,
    Pair,
    Tile,
    TileError,
    Tiles,
    attention_shared,
    tiles_for,
)
from engine.executor.kernels import attention

DEVICES = {
    "Hopper": (9, 232_448), "Ampere": (8, 166_912), "Ada": (8, 101_376), "Blackwell": (10, 232_448),
    "Blackwell, small": (12, 101_376),
}  # fmt: skip
HEADS = [(64, 3), (64, 8), (80, 1), (96, 4), (128, 1), (128, 4), (128, 12), (256, 2)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", [2, 4], ids=["16 bits", "32 bits"])
def test_everything_fits_whatever_the_dtype_and_the_heads(device: str, width: int) -> None:
    major, limit = DEVICES[device]
    for head_dim, group in HEADS:
        tiles = tiles_for(major, limit, width, head_dim, group)
        for pair in (tiles.dense, tiles.kept):
            assert pair.deep is not None
            assert all(tile.shared(width) <= limit for tile in (pair.narrow, pair.wide, pair.deep))
            assert replace(pair.deep, stages=pair.narrow.stages) == pair.narrow
            assert DEEPEST >= pair.deep.stages >= pair.narrow.stages
        assert attention_shared(tiles.queries, tiles.stages, width, head_dim) <= limit
        assert tiles.queries >= group, "the heads that share a KV head are in one tile"


def test_what_is_computed_in_16_bits_takes_all_that_its_family_has() -> None:
    for major, limit, family in ((9, 232_448, HOPPER), (8, 166_912, AMPERE)):
        found = tiles_for(major, limit, 2, 128, 4, 132)
        assert [(p.narrow, p.wide) for p in (found.dense, found.kept)] == [
            (p.narrow, p.wide) for p in (family.dense, family.kept)
        ]
        assert (found.queries, found.stages, found.multiprocessors) == (family.queries, family.stages, 132)


def test_float32_has_one_tile_so_that_there_is_one_order_of_additions() -> None:
    for major, limit in DEVICES.values():
        tiles = tiles_for(major, limit, 4, 128, 4)
        assert {tiles.dense.narrow, tiles.dense.wide, tiles.kept.narrow, tiles.kept.wide} == {tiles.dense.narrow}
        assert tiles == tiles.one


def test_stages_are_given_up_before_rows() -> None:
    tile = Tile(64, 64, 64, stages=4)
    limits = [tile.shared(2) - taken for taken in (0, 1, 40_000)]
    assert [tile.fitted(2, limit) for limit in limits] == [Tile(64, 64, 64, stages=n) for n in (4, 3, 1)]
    tiles = Tiles(Pair(tile, tile), Pair(tile, tile), 1 << 30, queries=64, stages=2)
    most = attention_shared(64, 2, 2, 128)
    found = [tiles.fitted(2, 128, 4, limit, 0) for limit in (most, most - 1, attention_shared(64, 1, 2, 128) - 1)]
    assert [(one.queries, one.stages) for one in found] == [(64, 2), (64, 1), (32, 1)]


def test_no_smaller_limit_gives_a_larger_tile() -> None:
    limits = range(60_000, 240_000, 10_000)
    found = [tiles_for(9, limit, 2, 128, 4) for limit in limits]
    for less, more in itertools.pairwise(found):
        assert less.dense.narrow.stages <= more.dense.narrow.stages
        assert less.dense.wide.stages <= more.dense.wide.stages
        assert less.queries <= more.queries


def test_where_nothing_fits_the_needed_and_the_given_are_named() -> None:
    with pytest.raises(TileError, match=r"attention over heads of 512 needs \d+ bytes of shared memory; .* 101376"):
        tiles_for(8, 101_376, 4, 512, 1)
    with pytest.raises(
        TileError, match=f"a tile of a matrix needs {16384 + BARRIERS} bytes of shared memory; the device gives 16000"
    ):
        Tile(64, 64, 64, stages=4).fitted(2, 16_000)


def test_the_plan_and_the_kernel_mean_the_same_keys() -> None:
    assert attention.KEYS.value == KEYS
