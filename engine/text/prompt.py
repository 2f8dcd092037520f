"""Prompts to ids, with a memory: what a chat says again and again (system prompt, earlier turns) is encoded once.

Exact, because special tokens are recognised before anything else and no merge crosses them: a text's ids are those of
its segments between special tokens, one after the other. Segments are remembered by their very text and by the tenant's
salt, so that nobody can learn from the time it takes what others have asked.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from typing import Final

from engine.text.tokenizer import Tokenizer

LEAST_CHARS: Final = 64
"""Shorter segments are encoded in less time than they are looked up."""
MEMORY_CHARS: Final = 4 << 20
"""Of all segments remembered: 20 MB at most."""


class PromptEncoder:
    """Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, memory_chars: int = MEMORY_CHARS) -> None:
        self._tokenizer = tokenizer
        self._most = self._room = memory_chars
        self._known: OrderedDict[tuple[bytes, str], array[int]] = OrderedDict()
        """The one used longest ago first."""
        self._lock = threading.Lock()

    def draft(self, text: str, salt: bytes, mark: str = "") -> Draft:
        """What is known of a prompt at once; `Draft.ids` encodes the rest. `mark`: as `engine.text.guard` put it in."""
        segments = self._tokenizer.segments(text)
        if mark:
            segments = [part.replace(mark, "") if isinstance(part, str) else part for part in segments]
        with self._lock:
            return Draft(self, salt, [self._find(segment, salt) for segment in segments])

    def join(self, parts: list[array[int]]) -> array[int]:
        """One after the other, with the token that begins a text where the model wants one and it is not there."""
        whole = array("I")
        for part in parts:
            whole.extend(part)
        prefix = array("I", self._tokenizer.prefix)
        return whole if whole[: len(prefix)] == prefix else prefix + whole

    def encode(self, segments: list[str], salt: bytes) -> list[array[int]]:
        """Raises ValueError for lone surrogates."""
        found = [array("I", ids) for ids in self._tokenizer.encode_segments(segments)]
        with self._lock:
            for segment, ids in zip(segments, found, strict=True):
                self._remember((salt, segment), ids)
        return found

    def _find(self, segment: str | int, salt: bytes) -> str | array[int]:
        if isinstance(segment, int):
            return array("I", (segment,))
        if len(segment) < LEAST_CHARS:
            return segment
        key = (salt, segment)
        ids = self._known.get(key)
        if ids is None:
            return segment
        self._known.move_to_end(key)
        return ids

    def _remember(self, key: tuple[bytes, str], ids: array[int]) -> None:
        chars = len(key[1])
        if chars < LEAST_CHARS or chars > self._most or key in self._known:
            return
        self._known[key] = ids
        self._room -= chars
        while self._room < 0:
            (_, forgotten), _ = self._known.popitem(last=False)
            self._room += len(forgotten)


class Draft:
    """A prompt of which some segments are known."""

    def __init__(self, encoder: PromptEncoder, salt: bytes, parts: list[str | array[int]]) -> None:
        self._encoder = encoder
        self._salt = salt
        self._parts = parts

    @property
    def missing_chars(self) -> int:
        """Still to be encoded."""
        return sum(len(part) for part in self._parts if isinstance(part, str))

    def ids(self) -> tuple[int, ...]:
        """The tokenizer's own ids of the whole text. Raises ValueError for lone surrogates."""
        missing = [part for part in self._parts if isinstance(part, str)]
        encoded = iter(self._encoder.encode(missing, self._salt) if missing else ())
        return tuple(self._encoder.join([next(encoded) if isinstance(part, str) else part for part in self._parts]))
