"""What a node still holds of earlier prompts: blocks by their id in the trace, the longest unused going first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Equal ids stand for equal tokens after equal ids, as in the Mooncake trace; so an id says the whole prefix."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: Sequence[int]) -> int:
        """How many leading blocks are held; they count as used now."""
        held = self._blocks
        for count, block in enumerate(blocks):
            if block not in held:
                return count
            held.move_to_end(block)
        return len(blocks)

    def add(self, blocks: Sequence[int], room: int) -> None:
        """`room`: most blocks that may be held. The end of a prompt goes before its beginning."""
        held = self._blocks
        for block in reversed(blocks):
            held[block] = None
            held.move_to_end(block)
        self.shrink(room)

    def shrink(self, room: int) -> None:
        held = self._blocks
        while len(held) > max(room, 0):
            held.popitem(last=False)

    def peek(self, blocks: Sequence[int]) -> int:
        """As `match`, but looking is no use."""
        held = self._blocks
        for count, block in enumerate(blocks):
            if block not in held:
                return count
        return len(blocks)

    def copy(self) -> PrefixCache:
        twin = PrefixCache()
        twin._blocks = self._blocks.copy()
        return twin

    def clear(self) -> None:
        self._blocks.clear()
