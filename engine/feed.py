"""Which prefixes this node holds, told to whoever routes to it: a snapshot, then each change, as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from edgeproxy.protocol.node.blocks import EVENT_BLOCKS, BlockChange, Change, Snapshot, position
from engine.step import BLOCK_TOKENS

READERS = 8
REMEMBERED = 1 << 14
"""Changes that a slow reader, or one who comes back, can still be told; beyond them it gets a new snapshot."""
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": keep-alive\n\n"


class TooManyReaders(Exception):
    """READERS follow the feed already."""


class BlockFeed:
    """A mirror of the pool's index, what changed in it of late, and who reads. Belongs to the event loop.

    A reader that sees any other `seq` than the next has lost events: it never does on one connection. Readers have no
    queues of their own, only a place in what is remembered, so that a slow one costs nothing.
    """

    def __init__(self, numerics: str, run: str) -> None:
        """run: a name that no other run of this node has."""
        self._numerics = numerics
        self._run = run
        self.seq = 0
        self._history: deque[Sequence[BlockChange]] = deque()
        """The last events; the newest has the number `seq`."""
        self._remembered = 0
        self._parents: dict[bytes, bytes] = {}
        """Key to the key of the block before; in order of addition."""
        self._readers: set[Reader] = set()
        self._closed = False

    def apply(self, changes: Sequence[BlockChange]) -> None:
        for start in range(0, len(changes), EVENT_BLOCKS):
            self._remember(changes[start : start + EVENT_BLOCKS])
        for added, key, parent in changes:
            if added:
                self._parents[key] = parent
            else:
                self._parents.pop(key, None)
        for reader in self._readers:
            reader.wake()

    def close(self) -> None:
        """Ends every reader's stream."""
        self._closed = True
        for reader in list(self._readers):
            reader.leave()

    def reader(self, last: str = "") -> Reader:
        """last: the `id` of the last event that it knows. Raises TooManyReaders."""
        if len(self._readers) >= READERS:
            raise TooManyReaders
        reader = Reader(self, self._known(last))
        self._readers.add(reader)
        if self._closed:
            reader.leave()
        return reader

    def left(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def remembers(self, seq: int) -> bool:
        """Whether all events after `seq` can be told."""
        return self.seq - len(self._history) <= seq <= self.seq

    def change(self, seq: int) -> bytes:
        """An event that is remembered."""
        return Change(self._run, seq, self._history[seq - self.seq - 1]).encode()

    def snapshot(self) -> Iterator[bytes]:
        """As of now, however late its parts are taken."""
        seq, blocks = self.seq, list(self._parents.items())
        parts = max(1, -(-len(blocks) // EVENT_BLOCKS))
        for part in range(parts):
            some = blocks[part * EVENT_BLOCKS : (part + 1) * EVENT_BLOCKS]
            yield Snapshot(self._run, seq, self._numerics, BLOCK_TOKENS, part, parts, some).encode()

    def _remember(self, changes: Sequence[BlockChange]) -> None:
        self.seq += 1
        self._history.append(changes)
        self._remembered += len(changes)
        while self._remembered > REMEMBERED:
            self._remembered -= len(self._history.popleft())

    def _known(self, last: str) -> int | None:
        run, _, seq = last.rpartition("-")
        if run != self._run or not seq.isdecimal() or position(run, int(seq)) != last:
            return None
        return int(seq)


class Reader:
    """One who follows the feed. To be left when done."""

    def __init__(self, feed: BlockFeed, seq: int | None) -> None:
        self._feed = feed
        self._seq = seq
        """The last event it was told."""
        self._parts: Iterator[bytes] = iter(())
        """Of a snapshot that it is being told."""
        self._gone = False
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    def leave(self) -> None:
        """Ends `next`. Idempotent."""
        self._gone = True
        self._feed.left(self)
        self._wake.set()

    async def next(self) -> bytes | None:
        """The next bytes of the stream, the snapshot first; None when it has ended."""
        while not self._gone:
            event = next(self._parts, None) or self._event()
            if event is not None:
                return event
            self._wake.clear()
            try:
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._wake.wait()
            except TimeoutError:
                return KEEP_ALIVE
        return None

    def _event(self) -> bytes | None:
        if self._seq is None or not self._feed.remembers(self._seq):
            self._seq, self._parts = self._feed.seq, self._feed.snapshot()
            return next(self._parts)
        if self._seq == self._feed.seq:
            return None
        self._seq += 1
        return self._feed.change(self._seq)
