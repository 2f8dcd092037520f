"""Ids to text as they come, never cutting a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental: what all pushes and `finish` return, joined, is the whole's `bytes.decode(errors="replace")`.

    Holds back at most the 3 bytes of an unfinished character. Control tokens add nothing, but for `shown`: their names.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int] = frozenset()) -> None:
        self._bytes_of = tokenizer.bytes_of
        if shown:
            names = {token: tokenizer.name_of(token).encode() for token in shown}
            self._bytes_of = lambda token: names.get(token) or tokenizer.bytes_of(token)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The complete characters that these ids finish."""
        return self._decoder.decode(b"".join(map(self._bytes_of, ids)))

    def finish(self) -> str:
        """U+FFFD where a character was left unfinished, else nothing. The detokenizer is then as new."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
