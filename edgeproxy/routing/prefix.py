"""Which node probably holds how much of a prompt in its KV cache.

A proxy has no tokenizer. So a prompt is taken as bytes, cut into chunks, and each chunk is named by a hash that chains
all before it (SGLang's router does alike, on characters). What was sent to a node is taken to be held there, until its
capacity has been sent over it or an answer's count of cached tokens says otherwise. Hashes are keyed by a secret and by
the tenant: nobody can probe what others have asked, nor make their prompts collide. A collision costs a detour only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from xxhash import xxh3_64_intdigest

CHUNKS = ((256, 64), (1024, 64), (4096, 128))
"""(bytes, how many): the further from the beginning, the coarser. About 600 kB; what lies behind is not looked at."""
NODE_CHUNKS = 65_536
"""Most chunks remembered of one node: 16 MB of prompts at least."""
LEVELS = 16
"""Most different depths that a prompt is looked up with."""
TOTAL_CHUNKS = 1_048_576
"""Of all nodes together: about 200 MB of memory at the very most."""


def _ends() -> tuple[int, ...]:
    ends, at = [], 0
    for size, count in CHUNKS:
        for _ in range(count):
            at += size
            ends.append(at)
    return tuple(ends)


_GONE: OrderedDict[int, None] = OrderedDict()
"""What a node holds that has left while a request was under way there."""
ENDS = _ends()
"""Byte offset at which each chunk ends."""
_PIECES = tuple(slice(start, end) for start, end in zip((0, *ENDS), ENDS, strict=False))


def chain(prompt: bytes, key: int) -> tuple[int, ...]:
    """A name for each whole chunk of `prompt` and all before it. `key`: the tenant's, 64 bits."""
    if len(prompt) < ENDS[0]:
        return ()
    names = []
    for piece in _PIECES[: bisect_right(ENDS, len(prompt))]:
        key = xxh3_64_intdigest(prompt[piece], key)
        names.append(key)
    return tuple(names)


class PrefixView:
    """What each node holds, by our own account. A node is named by its slot, a small number that it gets here."""

    def __init__(self, node_chunks: int = NODE_CHUNKS, total_chunks: int = TOTAL_CHUNKS) -> None:
        self._node_chunks = node_chunks
        self._total_chunks = total_chunks
        self._holders: dict[int, int] = {}
        """Chunk -> a bit for each node that holds it."""
        self._held: dict[int, OrderedDict[int, None]] = {}
        """Slot -> its chunks, the one used longest ago first; a chunk stands behind all that follow it in a prompt."""
        self._capacity: dict[int, int] = {}
        self._free: list[int] = []

    def join(self) -> int:
        """A slot for a node."""
        slot = self._free.pop() if self._free else len(self._held)
        self._held[slot] = OrderedDict()
        return slot

    def leave(self, slot: int) -> None:
        """The node is gone; the slot may be given to another."""
        self.lost(slot)
        del self._held[slot]
        self._capacity.pop(slot, None)
        self._free.append(slot)

    def lost(self, slot: int) -> None:
        """The node holds nothing any more: it has been started anew."""
        for chunk in self._held[slot]:
            self._clear(slot, chunk)
        self._held[slot].clear()

    def capacity(self, slot: int, tokens: int, bytes_per_token: float) -> None:
        """How much fits into the node's cache."""
        chunks = int(tokens * bytes_per_token / CHUNKS[0][0])
        self._capacity[slot] = max(chunks, 1)

    def holders(self, names: Sequence[int]) -> list[tuple[int, int]]:
        """(a bit for each slot, how many chunks from the beginning those nodes hold), the most first; those that hold
        none are left out. Beyond LEVELS different depths, all that are less deep count as the least of them."""
        found: list[tuple[int, int]] = []
        holders = self._holders.get
        still = holders(names[0], 0) if names else 0
        if not still:
            return found
        for depth, name in enumerate(names):
            now = holders(name, 0) & still
            if now == still:
                continue
            found.append((still ^ now, depth))
            still = now
            if not still:
                break
        if still:
            found.append((still, len(names)))
        found.reverse()
        if len(found) > LEVELS:
            together = 0
            for slots, _ in found[LEVELS - 1 :]:
                together |= slots
            found[LEVELS - 1 :] = [(together, found[-1][1])]
        return found

    def sent(self, slot: int, names: Sequence[int]) -> None:
        """A prompt goes to the node, which will hold it: at once, because its siblings may be right behind it."""
        holders, bit = self._holders, 1 << slot
        held = self._held.get(slot)
        if held is None:
            return
        for name in reversed(names):  # the first chunk last, so that it is the last to be forgotten
            if name in held:
                held.move_to_end(name)
            else:
                held[name] = None
                holders[name] = holders.get(name, 0) | bit
        most = min(self._capacity.get(slot, self._node_chunks), self._node_chunks, self._share())
        while len(held) > most:
            self._clear(slot, held.popitem(last=False)[0])

    def overestimated(self, slot: int) -> None:
        """An answer counted less than was taken to be held: so what was used longer ago is gone as well, by half."""
        held = self._held.get(slot, _GONE)
        for _ in range(len(held) // 2):
            self._clear(slot, held.popitem(last=False)[0])

    def unsent(self, slot: int, names: Sequence[int], depth: int) -> None:
        """What was sent has failed: the node holds the first `depth` chunks as before, and of the rest nothing."""
        held = self._held.get(slot, _GONE)
        for name in names[depth:]:
            if name in held:
                del held[name]
                self._clear(slot, name)

    @property
    def size(self) -> int:
        return len(self._holders)

    def _share(self) -> int:
        return max(self._total_chunks // max(len(self._held), 1), 1)

    def _clear(self, slot: int, name: int) -> None:
        left = self._holders.get(name, 0) & ~(1 << slot)
        if left:
            self._holders[name] = left
        else:
            self._holders.pop(name, None)


def members(slots: int) -> Iterator[int]:
    """The slots whose bits are set, lowest first."""
    while slots:
        lowest = slots & -slots
        yield lowest.bit_length() - 1
        slots ^= lowest


def held_bytes(depth: int) -> int:
    """Bytes in the first `depth` chunks."""
    return ENDS[depth - 1] if depth else 0


def depth_of(size: float) -> int:
    """How many whole chunks lie within so many bytes."""
    depth = 0
    for end in ENDS:
        if end > size:
            break
        depth += 1
    return depth
