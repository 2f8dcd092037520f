"""How much of a matrix, and how many tokens, a program takes: by device, dtype and head size, never by what is in a
step. Pure.

A tile must fit into the shared memory that one program may have. Of each operand there are `stages` parts there, so
that the next are on their way while one is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

KEYS = 64
"""That attention takes at a time (kernels/attention.py)."""
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
        """Bytes of shared memory that it needs, its operands of `width` bytes a value."""
        return self.stages * (self.rows + self.cols) * self.depth * width

    def fitted(self, width: int, limit: int) -> Tile:
        """With as many stages as fit into `limit` bytes. Raises TileError."""
        found = next(
            (t for stages in range(self.stages, 0, -1) if (t := self._of(stages)).shared(width) <= limit), None
        )
        if found is None:
            needed = self._of(1).shared(width)
            raise TileError(f"a tile of a matrix needs {needed} bytes of shared memory; the device gives {limit}")
        return found

    def _of(self, stages: int) -> Tile:
        return replace(self, stages=stages)


@dataclass(frozen=True, slots=True)
class Tiles:
    narrow: Tile
    wide: Tile
    quantised: Tile
    """For weights of 8 and 4 bits, whatever the number of rows."""
    widen_at: int
    """Rows from which the wide one is taken."""
    tokens: int = 1
    """That a program takes where each is by itself: norms and the like."""
    heads: int = 16
    """The same for heads of tokens."""
    queries: int = 64
    """Rows of a tile of attention: query tokens times the query heads that share a KV head."""
    stages: int = 2
    """Of keys and values in attention."""
    values: int = 1024
    """Of SwiGLU."""

    def of(self, rows: int) -> Tile:
        return self.wide if rows >= self.widen_at else self.narrow

    @property
    def one(self) -> Tiles:
        """The narrow one for everything: for a device on which the two do not agree."""
        return replace(self, wide=self.narrow)

    def fitted(self, width: int, head_dim: int, group: int, limit: int) -> Tiles:
        """As much of these as fits into `limit` bytes, of values of `width` bytes. Raises TileError."""
        queries, stages = _attending(self, width, head_dim, group, limit)
        narrow, wide, quantised = (tile.fitted(width, limit) for tile in (self.narrow, self.wide, self.quantised))
        return replace(self, narrow=narrow, wide=wide, quantised=quantised, queries=queries, stages=stages)


HOPPER = Tiles(
    narrow=Tile(64, 32, 128, warps=4, stages=4),
    wide=Tile(128, 256, 64, warps=8, stages=3),
    quantised=Tile(64, 64, 64, warps=4, stages=3),
    widen_at=128,
)
"""Every tile has a multiple of 64 rows, which Hopper's matrix instruction has too: so both are made of the same
ones."""
AMPERE = Tiles(
    narrow=Tile(16, 64, 128, warps=4, stages=3),
    wide=Tile(128, 128, 32, warps=4, stages=4),
    quantised=Tile(32, 64, 64, warps=4, stages=3),
    widen_at=64,
)
_EXACT = Tile(32, 64, 32, warps=4, stages=2)
FLOAT32 = Tiles(narrow=_EXACT, wide=_EXACT, quantised=_EXACT, widen_at=1 << 30, queries=16)
"""Without tensor cores each product is an instruction of its own, written out: a large tile would be more code than
anybody waits for."""
INTERPRETED = Tiles(
    narrow=Tile(16, 512, 512), wide=Tile(16, 512, 512), quantised=Tile(16, 512, 512),
    widen_at=1 << 30, tokens=16, heads=128, queries=256, values=1 << 15,
)  # fmt: skip
"""In numpy a tile costs as much as 10^5 multiplications, however large it is. Its order of additions may depend on the
tile, so there is one."""


def tiles_for(major: int, limit: int, width: int, head_dim: int, group: int) -> Tiles:
    """major: of CUDA's compute capability. limit: bytes of shared memory that a program may ask for: 232,448 on 9.0,
    166,912 on 8.0 and 8.7, 101,376 on 8.6 and 8.9. width: bytes of a value that is computed with. group: query heads
    that share a KV head. Raises TileError."""
    family = FLOAT32 if width == 4 else HOPPER if major == 9 else AMPERE
    return family.fitted(width, head_dim, group, limit)


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
