"""How much of a matrix, and how many tokens, a program takes: by kind of device, never by what is in a step."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Tile:
    rows: int
    cols: int
    depth: int
    """Of the inner dimension, an iteration. A multiple of 32: weights of few bits share scales by so many."""
    warps: int = 4
    stages: int = 3


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
    values: int = 1024
    """Of SwiGLU."""

    def of(self, rows: int) -> Tile:
        return self.wide if rows >= self.widen_at else self.narrow

    @property
    def one(self) -> Tiles:
        """The narrow one for everything: for a device on which the two do not agree."""
        return replace(self, wide=self.narrow)


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
INTERPRETED = Tiles(
    narrow=Tile(16, 512, 512), wide=Tile(16, 512, 512), quantised=Tile(16, 512, 512),
    widen_at=1 << 30, tokens=16, heads=128, queries=256, values=1 << 15,
)  # fmt: skip
"""In numpy a tile costs as much as 10^5 multiplications, however large it is. Its order of additions may depend on the
tile, so there is one."""
