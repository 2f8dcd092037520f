"""Forms as the scheduler meets them, without grammars: some of their tokens are forced."""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field, replace

from engine.constraint import only
from engine.step import Finish

VOCAB = 1000


@dataclass
class Form:
    """Runs of forced tokens with free ones between them, all decided by the tokens so far."""

    runs: int
    """Of so many states one is free."""
    ends: int | None = None
    """So many tokens are an answer."""
    looks: bool = True
    """Tells what is forced; else each mask says it alone."""
    tokens: list[int] = field(default_factory=list)
    asked: int = 0
    """Masks that were given."""

    def anew(self) -> Form:
        """One that has seen no token."""
        return replace(self, tokens=[], asked=0)

    def mask(self) -> bytes | None:
        self.asked += 1
        token = self._forced(self.tokens)
        return None if token is None else only(token, VOCAB)

    def forced(self, most: int) -> tuple[int, ...]:
        if not self.looks:
            return ()
        found: list[int] = []
        while len(found) < most and (token := self._forced([*self.tokens, *found])) is not None:
            found.append(token)
            if len(self.tokens) + len(found) == self.ends:
                break
        return tuple(found)

    def accept(self, token: int) -> Finish | None:
        assert self._forced(self.tokens) in (None, token), "not what was allowed"
        self.tokens.append(token)
        return Finish.STOP if len(self.tokens) == self.ends else None

    def _forced(self, tokens: list[int]) -> int | None:
        digest = zlib.crc32(array("q", [self.runs, *tokens]).tobytes())
        return None if digest % self.runs == 0 else (digest >> 8) % VOCAB
