"""Block tables: how sequences take, share and give back blocks of the pool. Pure.

A sequence takes blocks as plans need them, but what it was promised at its start is kept for it: what is available is
never less than what is promised. A full block is offered for reuse when the step that computed its last position has
completed, and not before; it is never written again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from edgeproxy.protocol.node.blocks import BlockChange
from engine.gauges import Gauges
from engine.kv import BlockPool, blocks_for, extend, name_blocks
from engine.sequence import Sequence
from engine.step import BLOCK_TOKENS

LOADS = 16
"""Most blocks that one plan loads from the second tier: they are copied while the step before it runs."""


class Tier(Protocol):
    """Blocks by their names (`kv.name_blocks`)."""

    def holds(self, name: bytes) -> bool: ...

    def load(self, name: bytes, block: int) -> bool:
        """Puts the content of that name into `block`; False where it is not there, or not sound any more."""
        ...

    def evicted(self, name: bytes, block: int) -> None:
        """The content of `block` is about to be overwritten."""
        ...


class Tables:
    def __init__(
        self,
        blocks: int,
        gauges: Gauges,
        changed: Callable[[BlockChange], None],
        tier: Tier | None = None,
    ) -> None:
        self._tier = tier
        self._loads = LOADS
        self._pool = BlockPool(blocks, changed, tier.evicted) if tier else BlockPool(blocks, changed)
        self._gauges = gauges
        self._promised = 0
        self._replaced: deque[tuple[int, int]] = deque()
        """(step, block): blocks that gave way to a twin, until the plans up to `step` have completed."""

    @property
    def spare(self) -> int:
        """Blocks available and promised to nobody."""
        return self._pool.available - self._promised

    @property
    def free(self) -> int:
        """Of the spare blocks those without content."""
        return max(0, self._pool.free - self._promised)

    def fits(self, sequence: Sequence, needed: int, headroom: int) -> bool:
        """Whether a sequence that is promised `needed` blocks leaves `headroom` to the others."""
        most = self.spare - headroom
        if needed <= most:
            return True
        extend(sequence.links, sequence.tokens, sequence.request.salt)
        if needed - len(sequence.links) > most:
            return False
        shared = self._pool.match(sequence.links[: _reusable(sequence)], sequence.request.salt)
        return needed - self._pool.held(shared) <= most

    def open(self, sequence: Sequence, needed: int) -> None:
        """Promises `needed` blocks, less those it finds in use."""
        self._extend(sequence)
        sequence.promised = needed
        self._promised += needed
        self.reuse(sequence)

    def known(self, sequence: Sequence) -> int:
        """Tokens of a sequence that has not begun whose KV the pool holds."""
        self._extend(sequence)
        return BLOCK_TOKENS * len(self._pool.match(sequence.links[: _reusable(sequence)], sequence.request.salt))

    def reuse(self, sequence: Sequence) -> None:
        """Moves a sequence past all that is computed already, except the last token, which must be sampled from."""
        first, end = sequence.planned // BLOCK_TOKENS, _reusable(sequence)
        if sequence.planned % BLOCK_TOKENS or first >= end or sequence.request.rehearsal:
            return
        before = sequence.blocks[-1] if first else sequence.request.salt
        found = self._pool.match(sequence.links[first:end], before)
        if not found:
            return
        self._pool.retain(found)
        self._found(sequence, found)

    def begin_plan(self) -> None:
        self._loads = LOADS

    def load(self, sequence: Sequence) -> bool:
        """Moves a sequence past what the second tier holds of it; True where there is more than one plan may load."""
        tier = self._tier
        if tier is None or sequence.planned % BLOCK_TOKENS or sequence.request.rehearsal:
            return False
        for index in range(sequence.planned // BLOCK_TOKENS, _reusable(sequence)):
            if not tier.holds(sequence.names[index]):
                return False
            if not self._loads:
                return True
            if not sequence.promised and self.spare < 1:
                return False
            self._loads -= 1
            (block,) = self._pool.allocate(1)
            if not tier.load(sequence.names[index], block):
                self._pool.release((block,))
                return False
            before = sequence.blocks[-1] if index else sequence.request.salt
            self._pool.register(block, before, sequence.links[index], sequence.names[index])
            self._gauges.blocks_loaded += self._found(sequence, [block])
        return False

    def grow(self, sequence: Sequence, positions: int) -> bool:
        """Blocks for positions [0, positions); False, and nothing is taken, where they are promised to others."""
        count = blocks_for(positions) - len(sequence.blocks)
        if count <= 0:
            return True
        if count - sequence.promised > self.spare:
            return False
        self._take(sequence, self._pool.allocate(count))
        if not sequence.request.rehearsal:
            self._gauges.blocks_computed += _count(sequence)
        return True

    def computed(self, sequence: Sequence, positions: int, step: int) -> None:
        """Positions [0, positions) are computed; plans up to `step` may name the blocks as they are now."""
        end = positions // BLOCK_TOKENS
        if sequence.request.rehearsal:
            return
        self._extend(sequence)
        for index in range(sequence.registered, end):
            block = sequence.blocks[index]
            before = sequence.blocks[index - 1] if index else sequence.request.salt
            name = sequence.names[index] if self._tier else b""
            kept = self._pool.register(block, before, sequence.links[index], name)
            if kept != block:
                sequence.blocks = (*sequence.blocks[:index], kept, *sequence.blocks[index + 1 :])
                self._replaced.append((step, block))
        sequence.registered = end

    def keep_promise(self, sequence: Sequence) -> None:
        """It takes no further block: what it was promised is for others."""
        self._promised -= sequence.promised
        sequence.promised = 0

    def release(self, sequence: Sequence) -> None:
        """Its blocks, once no plan names them."""
        self._pool.release(sequence.blocks)
        sequence.blocks = ()

    def forget(self, sequence: Sequence) -> None:
        """What it computed cannot be trusted."""
        self._pool.forget(sequence.blocks)

    def completed(self, step: int) -> None:
        while self._replaced and self._replaced[0][0] <= step:
            self._pool.release((self._replaced.popleft()[1],))

    def drop(self) -> None:
        """All content that nobody holds is lost."""
        self._pool.drop()

    def idle(self) -> list[tuple[bytes, int]]:
        """Name and block of all content that nobody holds, the least recently used first; for a second tier."""
        return list(self._pool.named())

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Raises IntegrityError unless the pool's books agree with these sequences' tables."""
        tables = [sequence.blocks for sequence in sequences]
        self._pool.check([*tables, tuple(block for _, block in self._replaced)])

    def _extend(self, sequence: Sequence) -> None:
        extend(sequence.links, sequence.tokens, sequence.request.salt)
        if self._tier:
            name_blocks(sequence.names, sequence.links, sequence.request.salt)

    def _found(self, sequence: Sequence, blocks: list[int]) -> int:
        """`blocks`, retained, hold what follows in the sequence. How many of them count as reused."""
        self._take(sequence, blocks)
        sequence.planned += len(blocks) * BLOCK_TOKENS
        sequence.registered = len(sequence.blocks)
        fresh = _count(sequence)
        self._gauges.blocks_reused += fresh
        if not sequence.generated:
            sequence.cached += fresh * BLOCK_TOKENS
        return fresh

    def _take(self, sequence: Sequence, blocks: Iterable[int]) -> None:
        before = len(sequence.blocks)
        sequence.blocks = (*sequence.blocks, *blocks)
        kept = min(sequence.promised, len(sequence.blocks) - before)
        sequence.promised -= kept
        self._promised -= kept


def _reusable(sequence: Sequence) -> int:
    """Full blocks that end before the last known token."""
    return (sequence.prefill - 1) // BLOCK_TOKENS


def _count(sequence: Sequence) -> int:
    """Blocks that it has for the first time: what it had before a preemption counts once."""
    fresh = max(0, len(sequence.blocks) - sequence.counted)
    sequence.counted += fresh
    return fresh
