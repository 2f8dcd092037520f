"""A byte-level BPE's merges as an image keeps them: to be looked up where they lie, without a table made at start."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

NONE: Final = 0xFFFFFFFF
"""Where there is no token."""
ASCII: Final = 128


class Merges(NamedTuple):
    letters: array[int]
    """uint32 [ASCII]: the token of each byte's letter."""
    pairs: array[int]
    """uint64 [merges], ascending: the ids of two tokens that become one, left << 32 | right."""
    ranks: array[int]
    """uint32 [merges]: of those pairs; the lowest is merged first."""
    made: array[int]
    """uint32 [merges]: what they become."""

    @classmethod
    def of(cls, tokens: Sequence[str], left: Sequence[int], right: Sequence[int]) -> Merges:
        """left, right: ids in order of rank."""
        ids = {token: id for id, token in enumerate(tokens)}
        ranks = {one << 32 | other: rank for rank, (one, other) in enumerate(zip(left, right, strict=True))}
        pairs = sorted(ranks)
        made = (ids.get(tokens[pair >> 32] + tokens[pair & NONE], NONE) for pair in pairs)
        letters = {byte[0]: letter for letter, byte in byte_alphabet().items()}
        return cls(
            array("I", (ids.get(letters[byte], NONE) for byte in range(ASCII))),
            array("Q", pairs),
            array("I", map(ranks.__getitem__, pairs)),
            array("I", made),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Merges:
        """As `to_bytes` gave them. Raises ValueError for another number of them."""
        head = 4 * ASCII
        merges, rest = divmod(len(data) - head, 16)
        if merges < 0 or rest:
            raise ValueError(f"the table of merges has {len(data)} bytes")
        ends = (0, head, head + 8 * merges, head + 12 * merges, len(data))
        return cls(*(array(kind, data[start:end]) for kind, (start, end) in zip("IQII", pairwise(ends), strict=True)))

    def to_bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in self)

    def find(self, left: int, right: int) -> int | None:
        """Where the pair stands in the table."""
        pair = left << 32 | right
        at = bisect_left(self.pairs, pair)
        return at if at < len(self.pairs) and self.pairs[at] == pair else None


def byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-ins: a printable Latin-1 byte is itself, the others are numbered from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}
