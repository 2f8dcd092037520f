"""Which prefixes this node holds, told to whoever routes to it: a snapshot, then each change, as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

import orjson

from engine.kv import BlockChange
from engine.step import BLOCK_TOKENS

READERS = 8
BACKLOG = 256
"""Events that wait for a slow reader; beyond them it gets a new snapshot instead."""
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"


class TooManyReaders(Exception):
    """READERS follow the feed already."""


class BlockFeed:
    """A mirror of the pool's index and its readers. Belongs to the event loop.

    `snapshot` has all blocks, each after the one before it; `change` what was added and removed since the event of one
    `seq` less. A reader that sees any other `seq` than the next has lost events: it never does on one connection.
    """

    def __init__(self, numerics: str) -> None:
        self._numerics = numerics
        self._seq = 0
        self._parents: dict[bytes, bytes] = {}
        """Key to the key of the block before; in order of addition."""
        self._readers: set[Reader] = set()
        self._closed = False

    def apply(self, changes: Sequence[BlockChange]) -> None:
        if not changes:
            return
        self._seq += 1
        for added, key, parent in changes:
            if added:
                self._parents[key] = parent
            else:
                self._parents.pop(key, None)
        if self._readers:
            event = self._event("change", {"changes": [_view(change) for change in changes]})
            for reader in self._readers:
                reader.push(event)

    def close(self) -> None:
        """Ends every reader's stream."""
        self._closed = True
        for reader in list(self._readers):
            reader.leave()

    def reader(self) -> Reader:
        """Raises TooManyReaders."""
        if len(self._readers) >= READERS:
            raise TooManyReaders
        reader = Reader(self.snapshot, self._readers.discard)
        self._readers.add(reader)
        if self._closed:
            reader.leave()
        return reader

    def snapshot(self) -> bytes:
        blocks = [[key.hex(), parent.hex()] for key, parent in self._parents.items()]
        return self._event("snapshot", {"numerics": self._numerics, "block_tokens": BLOCK_TOKENS, "blocks": blocks})

    def _event(self, name: str, data: dict[str, object]) -> bytes:
        body = orjson.dumps({"seq": self._seq, **data})
        return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), self._seq, body)


class Reader:
    """One who follows the feed. To be left when done."""

    def __init__(self, snapshot: Callable[[], bytes], left: Callable[[Reader], None]) -> None:
        self._snapshot = snapshot
        self._left = left
        self._events: deque[bytes] = deque()
        self._lost = True
        """Events are missing: a snapshot is due."""
        self._gone = False
        self._wake = asyncio.Event()

    def push(self, event: bytes) -> None:
        if len(self._events) >= BACKLOG:
            self._lost = True
        if not self._lost:
            self._events.append(event)
        self._wake.set()

    def leave(self) -> None:
        """Ends `next`. Idempotent."""
        self._gone = True
        self._left(self)
        self._wake.set()

    async def next(self) -> bytes | None:
        """The next bytes of the stream, the snapshot first; None when it has ended."""
        while not self._gone:
            if self._lost:
                self._lost = False
                self._events.clear()
                return self._snapshot()
            if self._events:
                return self._events.popleft()
            self._wake.clear()
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._wake.wait()
            except TimeoutError:
                return KEEP_ALIVE
        return None


def _view(change: BlockChange) -> list[str]:
    added, key, parent = change
    return ["+" if added else "-", key.hex(), parent.hex()]
