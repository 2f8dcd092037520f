"""Many requests at once go through the gateway stage by stage, instead of one after the other from end to end.

What a request runs through is far larger than the processor's first caches, so each request alone has them filled anew
at every step. Those that stand at the same stage run the same code one right behind the other.
"""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine

CROWD = 4
"""Requests under way, from which on a stage has several: fewer would only wait for a turn of the event loop."""


class Stages:
    """Of one gateway, which counts `under_way`."""

    __slots__ = ("under_way",)

    def __init__(self) -> None:
        self.under_way = 0

    @coroutine
    def pause(self) -> Generator[None, None, None]:
        """To be awaited between two stages: the others of this turn come as far first. May be cancelled there."""
        if self.under_way >= CROWD:
            yield
