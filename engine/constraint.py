"""What limits the tokens of a sequence: a grammar, or a text that is known. Pure: the scheduler drives it."""

from __future__ import annotations

from typing import Protocol

from engine.step import Finish


class Constraint(Protocol):
    """Of one sequence; it remembers the tokens that it was given."""

    def mask(self) -> bytes | None:
        """The tokens that may come next, one at least, as `Executor.allow` takes them; None: all."""

    def accept(self, token: int) -> Finish | None:
        """Takes the token that was sampled. STOP where nothing may follow it, ERROR where the rules are too much work
        to go on with."""
