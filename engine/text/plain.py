"""Byte-level BPE in Python, for what a node is asked first.

The library takes a tenth of a second to be made from a vocabulary, and the interpreter with it; this is there at once,
and encodes a short prompt in about one millisecond.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from engine.model.merges import NONE, Merges

MOST_CHARS: Final = 1024
"""Of all texts encoded at once: what this takes a few milliseconds for."""
_WORDS: Final = re.compile(
    r"[0-9]|'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+(?=[0-9]|\Z)|\s+(?!\S)|\s+", re.ASCII
)
"""Digits one by one, then GPT-2's pattern between them; of ASCII, where Unicode's classes are these."""


class PlainBpe:
    """Sennrich et al., arXiv:1508.07909. Thread-safe."""

    def __init__(self, merges: Merges) -> None:
        self._merges = merges
        self._last = NONE
        """What no merge has for its place in the table and for its rank: it comes after all others."""

    def takes(self, texts: Sequence[str]) -> bool:
        return sum(map(len, texts)) <= MOST_CHARS and all(map(str.isascii, texts))

    def encode(self, text: str) -> list[int]:
        """Of ASCII, without special tokens. Characters that the vocabulary has no token for are left out.

        Raises ValueError for a merge that makes no token.
        """
        return [token for word in _WORDS.findall(text) for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        letters = map(self._merges.letters.__getitem__, word.encode("ascii"))
        parts = [letter for letter in letters if letter != NONE]
        while len(parts) > 1:
            _, at, entry = min(self._merge(at, *pair) for at, pair in enumerate(pairwise(parts)))
            if entry == self._last:
                break
            parts[at : at + 2] = [self._made(entry)]
        return parts

    def _merge(self, at: int, left: int, right: int) -> tuple[int, int, int]:
        """Its rank, where in the word it is, and where in the table."""
        entry = self._merges.find(left, right)
        return (self._last, at, self._last) if entry is None else (self._merges.ranks[entry], at, entry)

    def _made(self, entry: int) -> int:
        made = self._merges.made[entry]
        if made == NONE:
            raise ValueError(f"merge {self._merges.ranks[entry]} makes no token")
        return made
