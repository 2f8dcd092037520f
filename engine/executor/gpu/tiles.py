"""How much of a matrix, and how many tokens, a program takes: by device, dtype and head size, never by what is in a
step. Pure.

A tile must fit into the shared memory that one program may have. Of each operand there are `stages` parts there, so
that the next are on their way while one is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

KEYS = 64
"""That attention takes at a time (kernels/attention.py)."""
DEEPEST = 8
"""Most stages."""
BARRIERS = 1024
"""Bytes of shared memory that a compiler may take beside the operands, for what tells that they are there."""
LEAST_ROWS = 16
"""Of a tile: what a matrix instruction has."""


class TileError(ValueError):
    """Nothing fits into the device's shared memory."""


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    cols: int
    depth: int
    """Of the inner dimension, an iteration. A multiple of 32: weights of few bits share scales by so many."""
    warps: int = 4
    stages: int = 3

    def shared(self, width: int) -> int:
        """Bytes of shared memory that it needs at most, its operands of `width` bytes a value."""
        return self.stages * (self.rows + self.cols) * self.depth * width + BARRIERS

    @property
    def paired(self) -> Tile:
        """For two matrices at a time, as many rows of each: as large as this one."""
        return replace(self, cols=self.cols // 2)

    def programs(self, rows: int, cols: int) -> int:
        return -(-rows // self.rows) * -(-cols // self.cols)

    def fitted(self, width: int, limit: int) -> Tile:
        """With as many stages as fit into `limit` bytes. Raises TileError."""
        found = next(
            (t for stages in range(self.stages, 0, -1) if (t := self._of(stages)).shared(width) <= limit), None
        )
        if found is None:
            needed = self._of(1).shared(width)
            raise TileError(f"a tile of a matrix needs {needed} bytes of shared memory; the device gives {limit}")
        return found

    def deepened(self, width: int, limit: int) -> Tile:
        """With as many stages as fit: for a program that has a multiprocessor to itself."""
        return self._of(DEEPEST).fitted(width, limit)

    def _of(self, stages: int) -> Tile:
        return replace(self, stages=stages)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two tiles that give the same bits, of one kind of weights."""

    narrow: Tile
    """For few rows."""
    wide: Tile
    deep: Tile | None = None
    """The narrow one where there are no more programs than multiprocessors: then the bytes that are on their way at a
    time are what bounds a product, and each program may have as many as fit."""

    @property
    def one(self) -> Pair:
        """The narrow one for everything."""
        return replace(self, wide=self.narrow)

    def fitted(self, width: int, limit: int) -> Pair:
        """Raises TileError."""
        narrow, wide = self.narrow.fitted(width, limit), self.wide.fitted(width, limit)
        return Pair(narrow, wide, narrow.deepened(width, limit))


@dataclass(frozen=True, slots=True)
class Tiles:
    dense: Pair
    """For weights of 16 and 32 bits."""
    kept: Pair
    """For those of 8 and 4."""
    widen_at: int
    """Rows from which the wide one is taken."""
    multiprocessors: int = 0
    """Of the device."""
    tokens: int = 1
    """That a program takes where each is by itself: norms and the like."""
    heads: int = 16
    """The same for heads of tokens."""
    queries: int = 64
    """Rows of a tile of attention: query tokens times the query heads that share a KV head."""
    stages: int = 2
    """Of keys and values in attention."""
    warps: int = 8
    """Of attention: with fewer, its tile does not fit into registers."""

    def of(self, bits: int, rows: int, cols: int, *, paired: bool = False) -> Tile:
        """For weights of `bits` bits, `cols` outputs of `rows` rows. paired: of two matrices of so many at a time."""
        pair = self.kept if bits in (4, 8) else self.dense
        narrow, deep, wide = (
            tile.paired if paired else tile for tile in (pair.narrow, pair.deep or pair.narrow, pair.wide)
        )
        if rows >= self.widen_at:
            return wide
        return deep if narrow.programs(rows, cols) <= self.multiprocessors else narrow

    @property
    def one(self) -> Tiles:
        """The narrow ones for everything: for a device on which narrow and wide do not agree."""
        return replace(self, dense=self.dense.one, kept=self.kept.one)

    def fitted(self, width: int, head_dim: int, group: int, limit: int, multiprocessors: int) -> Tiles:
        """As much of these as fits into `limit` bytes, of values of `width` bytes. Raises TileError."""
        queries, stages = _attending(self, width, head_dim, group, limit)
        dense, kept = self.dense.fitted(width, limit), self.kept.fitted(width, limit)
        return replace(self, dense=dense, kept=kept, multiprocessors=multiprocessors, queries=queries, stages=stages)


HOPPER = Tiles(
    dense=Pair(Tile(64, 32, 128, warps=4, stages=4), Tile(128, 256, 64, warps=8, stages=3)),
    kept=Pair(Tile(64, 32, 128, warps=4, stages=4), Tile(128, 128, 64, warps=8, stages=3)),
    widen_at=128,
)
"""Every tile has a multiple of 64 rows, which Hopper's matrix instruction has too: so all are made of the same
ones."""
AMPERE = Tiles(
    dense=Pair(Tile(16, 64, 128, warps=4, stages=3), Tile(128, 128, 32, warps=4, stages=4)),
    kept=Pair(Tile(16, 64, 128, warps=4, stages=3), Tile(64, 128, 32, warps=4, stages=3)),
    widen_at=64,
)
NEWER = Tiles(
    dense=Pair(Tile(16, 64, 128, warps=4, stages=3), Tile(32, 256, 64, warps=8, stages=3)),
    kept=Pair(Tile(16, 64, 128, warps=4, stages=3), Tile(32, 128, 64, warps=4, stages=3)),
    widen_at=64,
)
"""What has fewer than 64 rows is made of Ampere's instruction there too; with more, of one that the narrow tile cannot
be made of."""
_EXACT = Tile(32, 64, 32, warps=4, stages=2)
FLOAT32 = Tiles(Pair(_EXACT, _EXACT), Pair(_EXACT, _EXACT), widen_at=1 << 30, queries=16, warps=4)
"""Without tensor cores each product is an instruction of its own, written out: a large tile would be more code than
anybody waits for."""
_LARGE = Tile(16, 512, 512)
INTERPRETED = Tiles(Pair(_LARGE, _LARGE), Pair(_LARGE, _LARGE), widen_at=1 << 30, tokens=16, heads=128, queries=256)
"""In numpy a tile costs as much as 10^5 multiplications, however large it is. Its order of additions may depend on the
tile, so there is one."""


def tiles_for(major: int, limit: int, width: int, head_dim: int, group: int, multiprocessors: int = 0) -> Tiles:
    """major: of CUDA's compute capability. limit: bytes of shared memory that a program may ask for: 232,448 on 9.0,
    166,912 on 8.0 and 8.7, 101,376 on 8.6 and 8.9. width: bytes of a value that is computed with. group: query heads
    that share a KV head. Raises TileError."""
    family = FLOAT32 if width == 4 else AMPERE if major < 9 else HOPPER if major == 9 else NEWER
    return family.fitted(width, head_dim, group, limit, multiprocessors)


def attention_shared(queries: int, stages: int, width: int, head_dim: int) -> int:
    """Bytes of shared memory that attention needs at most: queries, their weights, and keys and values of each stage;
    with one stage keys make way for values."""
    padded = _padded(head_dim)
    operands = 2 * stages if stages > 1 else 1
    return width * (queries * (padded + KEYS) + operands * KEYS * padded)


def _attending(tiles: Tiles, width: int, head_dim: int, group: int, limit: int) -> tuple[int, int]:
    """Query rows and stages: rather fewer stages than fewer rows, which read keys and values more often."""
    least = _padded(group)
    queries = max(tiles.queries, least)
    while queries >= least:
        for stages in range(tiles.stages, 0, -1):
            if attention_shared(queries, stages, width, head_dim) <= limit:
                return queries, stages
        queries //= 2
    needed = attention_shared(least, 1, width, head_dim)
    raise TileError(
        f"attention over heads of {head_dim} needs {needed} bytes of shared memory; the device gives {limit}"
    )


def _padded(size: int) -> int:
    """To what a matrix instruction takes."""
    return max(LEAST_ROWS, 1 << (size - 1).bit_length())
