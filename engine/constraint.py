"""What limits the tokens of a sequence: a grammar, or a text that is known. Pure: the scheduler drives it."""

from __future__ import annotations

from typing import Protocol

from engine.step import Finish


class Constraint(Protocol):
    """Of one sequence; it remembers the tokens that it was given."""

    def mask(self) -> bytes | None:
        """The tokens that may come next, one at least, as `Executor.allow` takes them; None: all."""

    def accept(self, token: int) -> Finish | None:
        """Takes the token that was sampled. STOP where nothing may follow it, RULES where they are too much work to go
        on with."""

    def forced(self, most: int) -> tuple[int, ...]:
        """What must come next, `most` tokens at most: of each the mask would name it alone. Takes none of them."""


def only(token: int, vocab: int) -> bytes:
    """The mask of one token."""
    return (1 << token).to_bytes(-(-vocab // 32) * 4, "little")
