"""Byte-level BPE in Python, for what a node is asked first.

The library takes a tenth of a second to be made from a vocabulary, and the interpreter with it; this takes a few
milliseconds, and encodes a short prompt in about one.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from engine.model.vocabulary import Vocabulary

MOST_CHARS: Final = 1024
"""Of all texts encoded at once: what this takes a few milliseconds for."""
_WORDS: Final = re.compile(
    r"[0-9]|'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+(?=[0-9]|\Z)|\s+(?!\S)|\s+", re.ASCII
)
"""Digits one by one, then GPT-2's pattern between them; of ASCII, where Unicode's classes are these."""


class PlainBpe:
    """Sennrich et al., arXiv:1508.07909. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, alphabet: Sequence[str]) -> None:
        """alphabet: the character that stands for each byte."""
        self._tokens = tokens = vocabulary.tokens
        self._pairs = pairs = array("I", bytes(8 * len(vocabulary.left)))
        pairs[::2], pairs[1::2] = vocabulary.left, vocabulary.right
        self._ranks = dict(zip(array("Q", pairs.tobytes()), range(len(vocabulary.left)), strict=True))
        """Both ids as one number, as they lie in memory -> rank. A tuple for each would take four times as long."""
        self._low, self._high = (0, 32) if sys.byteorder == "little" else (32, 0)
        letters = {character: byte for byte, character in enumerate(alphabet[:128])}
        self._letters = {letters[token]: id for id, token in enumerate(tokens) if token in letters}
        self._made: dict[int, int] = {}
        """Rank -> the id of what the merge makes, as far as it was asked for."""

    def takes(self, texts: Sequence[str]) -> bool:
        return sum(map(len, texts)) <= MOST_CHARS and all(map(str.isascii, texts))

    def encode(self, text: str) -> list[int]:
        """Of ASCII, without special tokens. Characters that the vocabulary has no token for are left out.

        Raises ValueError for a merge that makes no token.
        """
        return [token for word in _WORDS.findall(text) for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        letters = map(self._letters.get, word.encode("ascii"))
        parts = [letter for letter in letters if letter is not None]
        last = len(self._pairs)
        while len(parts) > 1:
            rank, at = min((self._rank(*pair, last), at) for at, pair in enumerate(pairwise(parts)))
            if rank == last:
                break
            parts[at : at + 2] = [self._make(rank)]
        return parts

    def _rank(self, left: int, right: int, none: int) -> int:
        return self._ranks.get((left << self._low) | (right << self._high), none)

    def _make(self, rank: int) -> int:
        made = self._made.get(rank)
        if made is None:
            left, right = self._pairs[2 * rank : 2 * rank + 2]
            made = self._made[rank] = self._find(self._tokens[left] + self._tokens[right], rank)
        return made

    def _find(self, token: str, rank: int) -> int:
        """Tokens mostly stand in the order of the merges that make them, behind those that no merge makes."""
        last = rank + len(self._tokens) - len(self._ranks)
        near = range(max(0, last - 64), min(last + 64, len(self._tokens)))
        return next((id for id in near if self._tokens[id] == token), None) or self._tokens.index(token)
