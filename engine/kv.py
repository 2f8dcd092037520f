"""The pool of KV blocks: who holds which, and how many hold it. Pure: numbers only, no memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.step import BLOCK_TOKENS


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` positions."""
    return -(-tokens // BLOCK_TOKENS)


class IntegrityError(AssertionError):
    """The pool's books do not add up: a defect of the scheduler, never of a request."""


class BlockPool:
    """Blocks 0..total-1 with reference counts. A block freed last is taken first, so that few pages stay in use."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(reversed(range(total)))
        self._references = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...]:
        """`count` blocks with one reference each. Raises IntegrityError where fewer are free: ask `free` first."""
        if count > len(self._free):
            raise IntegrityError(f"{count} blocks asked of {len(self._free)} free")
        taken = tuple(self._free.pop() for _ in range(count))
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """One more reference on blocks that are in use."""
        for block in blocks:
            if not self._references[block]:
                raise IntegrityError(f"block {block} is free and cannot be shared")
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less; a block without references is free again."""
        for block in reversed(blocks):
            if not self._references[block]:
                raise IntegrityError(f"block {block} is freed twice")
            self._references[block] -= 1
            if not self._references[block]:
                self._free.append(block)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises IntegrityError unless references are exactly those of `tables` and free + used == total."""
        held = Counter(block for table in tables for block in table)
        for block, count in enumerate(self._references):
            if count != held[block]:
                raise IntegrityError(f"block {block} has {count} references, {held[block]} tables name it")
        if len(self._free) + len(held) != self.total or held.keys() & set(self._free):
            raise IntegrityError(f"{len(self._free)} free + {len(held)} used blocks of {self.total}")
