"""What a node's evictions mean for the prompts that were sent to it: blocks of tokens there, chunks of bytes here.

A prompt is known by its last KV block (`protocol.node.blocks`). Its blocks and its chunks both begin at its beginning,
so what is left of its blocks is, by share, what is left of its chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edgeproxy.protocol.node.blocks import Change, HeldBlocks, Prefix, Snapshot
from edgeproxy.routing.prefix import depth_of

MOST_PROMPTS = 4096
"""Remembered of one node, those that were answered last."""


class Prompt(NamedTuple):
    names: Sequence[int]
    """Of its chunks."""
    block_bytes: float
    blocks: int


class Evictions:
    """One node's: what it holds, and which prompts that concerns."""

    def __init__(self, most: int = MOST_PROMPTS) -> None:
        self._most = most
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        """By the last block that they are taken to have. Prompts that agree in it agree in all before it."""
        self.held = HeldBlocks()

    def answered(self, prefix: Prefix, names: Sequence[int], size: int) -> None:
        """A prompt of `size` bytes was computed there."""
        if prefix.blocks:
            self._remember(prefix.tail, Prompt(names, size / prefix.blocks, prefix.blocks))

    def apply(self, event: Snapshot | Change) -> Iterator[tuple[Sequence[int], int]]:
        """The prompts of which less is left, as chunk names and how many of them, from the first, are held.

        Raises Gap and ValueError as `HeldBlocks.apply`.
        """
        self.held.apply(event)
        if isinstance(event, Change):
            gone = [key for added, key, _ in event.changes if not added and key in self._prompts]
        else:
            gone = [key for key in self._prompts if key not in self.held] if self.held.whole else []
        for key in gone:
            prompt = self._prompts.pop(key, None)
            if prompt is None or key in self.held:
                continue
            left = self.held.left(Prefix(key, prompt.blocks))
            if left is None:
                yield prompt.names, 0
                continue
            self._remember(left.tail, prompt._replace(blocks=left.blocks))
            yield prompt.names, depth_of(left.blocks * prompt.block_bytes)

    def _remember(self, tail: bytes, prompt: Prompt) -> None:
        self._prompts[tail] = prompt
        self._prompts.move_to_end(tail)
        if len(self._prompts) > self._most:
            self._prompts.popitem(last=False)
