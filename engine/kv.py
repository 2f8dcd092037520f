"""The pool of KV blocks: who holds which, and which hold a prefix that can be used again. Pure: numbers, no memory.

A block is free, in use (references > 0), or idle: nobody holds it, but its content stays until the block is needed for
something else, least recently used first. Who holds a block holds all blocks before it too and releases the last
first, so that a block is never evicted before those that continue it.

A key says where to look; what is found counts only if its tokens and the very block before it are the same too.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from xxhash import xxh3_128_digest

from edgeproxy.protocol.node.blocks import BlockChange
from engine.step import BLOCK_TOKENS

TOKEN_TYPE = "I"
"""Of arrays of token ids: unsigned, 32 bits."""
_BLOCK_BYTES = BLOCK_TOKENS * array(TOKEN_TYPE).itemsize


def blocks_for(tokens: int) -> int:
    """Blocks that hold `tokens` positions."""
    return -(-tokens // BLOCK_TOKENS)


class IntegrityError(AssertionError):
    """The pool's books do not add up: a defect of the scheduler, never of a request."""


Link = tuple[bytes, bytes]
"""A full block of a sequence: its key and the bytes of its token ids."""


def extend(links: list[Link], tokens: array[int], salt: bytes) -> None:
    """Adds the links of the full blocks of `tokens` that `links` has not yet.

    A key is xxh3_128 of the key before it and the block's token ids; the first has the salt's hash before it. So two
    sequences agree in a key if they agree in salt and in every token so far.
    """
    start = len(links) * BLOCK_TOKENS
    data = tokens[start : len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS].tobytes()
    key = links[-1][0] if links else xxh3_128_digest(salt)
    for at in range(0, len(data), _BLOCK_BYTES):
        chunk = data[at : at + _BLOCK_BYTES]
        key = xxh3_128_digest(key + chunk)
        links.append((key, chunk))


NAME_BYTES = 32


def name_blocks(names: list[bytes], links: Sequence[Link], salt: bytes) -> None:
    """Adds the names of `links` that `names` has not yet.

    A name is BLAKE2b (RFC 7693) of the name before it and the block's token ids; the first has the salt's before it. It
    stands for salt and tokens without a comparison, which xxh3 would not: for where the tokens themselves are not kept.
    """
    name = names[-1] if names else blake2b(salt, digest_size=NAME_BYTES, person=b"edge-kv salt").digest()
    for _, tokens in links[len(names) :]:
        name = blake2b(name + tokens, digest_size=NAME_BYTES).digest()
        names.append(name)


@dataclass(slots=True, eq=False)
class _Content:
    """What a block holds. Its identity stands for all tokens up to its end and their salt."""

    block: int
    key: bytes
    before: _Content | bytes
    """The content of the block before it, or the salt."""
    parent: bytes
    """The key of the block before it, or nothing."""
    tokens: bytes
    name: bytes
    """By which a second tier knows it; empty where there is none."""


def _unheard(_: BlockChange) -> None: ...


def _let_go(name: bytes, block: int) -> None: ...


class BlockPool:
    """Blocks 0..total-1 with reference counts and an index by content. What was freed last is taken first."""

    def __init__(
        self,
        total: int,
        changed: Callable[[BlockChange], None] = _unheard,
        evicted: Callable[[bytes, int], None] = _let_go,
    ) -> None:
        """changed: called at each addition to and removal from the index; a sequence's first block has no parent.

        evicted: called with name and block before content that has a name is given up for other content.
        """
        self.total = total
        self._changed = changed
        self._evicted = evicted
        self._free = list(reversed(range(total)))
        self._idle: OrderedDict[int, None] = OrderedDict()
        """The next to be evicted first."""
        self._references = [0] * total
        self._contents: list[_Content | None] = [None] * total
        self._index: dict[bytes, _Content] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def evictable(self) -> int:
        """Blocks with content that nobody holds."""
        return len(self._idle)

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give."""
        return len(self._free) + len(self._idle)

    def held(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are in use."""
        return sum(self._references[block] > 0 for block in blocks)

    def match(self, links: Iterable[Link], before: int | bytes) -> list[int]:
        """Blocks that hold the longest known beginning of `links`, to be retained before anything else is done.

        before: the block that precedes them, or the salt where they begin the sequence.
        """
        above = self._content(before)
        blocks: list[int] = []
        if above is None:
            return blocks
        get = self._index.get
        for key, tokens in links:
            found = get(key)
            if found is None or found.before != above or found.tokens != tokens:
                break
            blocks.append(found.block)
            above = found
        return blocks

    def allocate(self, count: int) -> tuple[int, ...]:
        """`count` blocks with one reference each. Raises IntegrityError where fewer are available: ask first."""
        if count > self.available:
            raise IntegrityError(f"{count} blocks asked of {self.available} available")
        while len(self._free) < count:
            block, _ = self._idle.popitem(last=False)
            content = self._contents[block]
            if content is not None and content.name:
                self._evicted(content.name, block)
            self._discard(block)
            self._free.append(block)
        taken = tuple(self._free.pop() for _ in range(count))
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Sequence[int]) -> None:
        """One more reference on blocks that are in use or idle."""
        for block in blocks:
            if not self._references[block]:
                if block not in self._idle:
                    raise IntegrityError(f"block {block} is free and cannot be shared")
                del self._idle[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less, the last block first; one without references is idle or free again."""
        for block in reversed(blocks):
            if not self._references[block]:
                raise IntegrityError(f"block {block} is freed twice")
            self._references[block] -= 1
            if not self._references[block]:
                if self._contents[block] is None:
                    self._free.append(block)
                else:
                    self._idle[block] = None

    def register(self, block: int, before: int | bytes, link: Link, name: bytes = b"") -> int:
        """All of `block` is computed. Returns the block that holds this content from now on: itself, or its twin.

        A twin that is in use is retained: the caller turns to it and releases `block`. An idle one gives way.
        The block stays out of the index where the one before it is not there, or another content has its key.
        """
        above = self._content(before)
        key, tokens = link
        twin = self._index.get(key)
        if above is None:
            return block
        if twin is None:
            parent = above.key if isinstance(above, _Content) else b""
            self._index[key] = self._contents[block] = _Content(block, key, above, parent, tokens, name)
            self._changed((True, key, parent))
        elif twin.before == above and twin.tokens == tokens:
            if self._references[twin.block]:
                self._references[twin.block] += 1
                return twin.block
            self._move(twin, block)
        return block

    def forget(self, blocks: Sequence[int]) -> None:
        """Takes the content of those that only one holds out of the index: it is not to be trusted."""
        for block in blocks:
            if self._references[block] == 1 and self._contents[block] is not None:
                self._discard(block)

    def drop(self) -> None:
        """Gives up all content that nobody holds, and keeps it nowhere."""
        while self._idle:
            block, _ = self._idle.popitem(last=False)
            self._discard(block)
            self._free.append(block)

    def named(self) -> Iterator[tuple[bytes, int]]:
        """Name and block of what nobody holds, the next to be evicted first."""
        for block in self._idle:
            content = self._contents[block]
            if content is not None and content.name:
                yield content.name, block

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises IntegrityError unless references are exactly those of `tables` and free + used + idle == total."""
        held = Counter(block for table in tables for block in table)
        for block, count in enumerate(self._references):
            if count != held[block]:
                raise IntegrityError(f"block {block} has {count} references, {held[block]} tables name it")
        free, idle = set(self._free), self._idle.keys()
        if len(self._free) + len(idle) + len(held) != self.total or free & held.keys() or free & idle:
            raise IntegrityError(f"{self.free} free + {len(held)} used + {len(idle)} idle blocks of {self.total}")
        indexed = {content.block for content in self._index.values()}
        known = {block for block, content in enumerate(self._contents) if content is not None}
        if indexed != known or not idle <= known or free & known or len(indexed) != len(self._index):
            raise IntegrityError("the index names other blocks than those with content")

    def _content(self, before: int | bytes) -> _Content | bytes | None:
        return before if isinstance(before, bytes) else self._contents[before]

    def _move(self, content: _Content, block: int) -> None:
        del self._idle[content.block]
        self._contents[content.block] = None
        self._free.append(content.block)
        content.block = block
        self._contents[block] = content

    def _discard(self, block: int) -> None:
        content = self._contents[block]
        if content is None:
            raise IntegrityError(f"block {block} is idle without content")
        self._contents[block] = None
        del self._index[content.key]
        self._changed((False, content.key, content.parent))
