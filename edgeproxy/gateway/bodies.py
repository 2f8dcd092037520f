"""What the bodies of all requests take together: one limit for everybody, and at most half of it for one client."""

from __future__ import annotations

import asyncio
import ctypes
import functools
from collections import Counter
from collections.abc import Generator
from typing import TypeVar

from edgeproxy.protocol.openai.errors import ApiError

FREE_BYTES = 64 * 2**10
"""A body up to this size is let in uncounted: the number of connections bounds those."""
_WORTH_TRIMMING_BYTES = 64 * 2**20
_TRIM_AFTER_S = 1.0
_T = TypeVar("_T")


class Bodies:
    """Counts from the moment in which a length is announced, so that bodies which have begun can also end."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_client: Counter[str] = Counter()
        self.held = 0
        self.turns = asyncio.Lock()
        """Held by who works on a large body, for one turn of the event loop."""
        self._freed = 0

    def room(self, client: str) -> Room:
        return Room(self, client)

    def take(self, client: str, size: int) -> None:
        """Raises ApiError 503."""
        if self.held + size > self._most or self._by_client[client] + size > self._most // 2:
            raise ApiError(
                503,
                "the requests under way are too long together for one more of this length; try again",
                "too_many_bytes",
                headers=((b"retry-after", b"1"),),
            )
        self.held += size
        self._by_client[client] += size

    def give_back(self, client: str, size: int) -> None:
        self.held -= size
        self._by_client[client] -= size
        if not self._by_client[client]:
            del self._by_client[client]
        self._freed += size
        if self._freed >= _WORTH_TRIMMING_BYTES:
            self._freed = 0
            loop = asyncio.get_running_loop()
            loop.call_later(_TRIM_AFTER_S, loop.run_in_executor, None, trim)


class Room:
    """One request's, to be closed at its end."""

    __slots__ = ("_bodies", "_client", "size")

    def __init__(self, bodies: Bodies, client: str) -> None:
        self._bodies = bodies
        self._client = client
        self.size = 0

    @property
    def turns(self) -> asyncio.Lock:
        return self._bodies.turns

    def close(self) -> None:
        if self.size:
            self._bodies.give_back(self._client, self.size)

    def cover(self, size: int) -> None:
        """The body has, or will have, so many bytes. Raises ApiError 503."""
        more = size - self.size
        if size > FREE_BYTES and more > 0:
            self._bodies.take(self._client, more)
            self.size = size


async def in_turns(pieces: Generator[None, None, _T], turns: asyncio.Lock) -> _T:
    """What `pieces` returns: of all that share `turns`, one piece a turn of the event loop."""
    while True:
        async with turns:
            try:
                next(pieces)
            except StopIteration as end:
                found: _T = end.value
                return found
            await asyncio.sleep(0)


def trim() -> None:
    """Gives freed memory back to the system; the C library keeps most of it otherwise."""
    release = _malloc_trim()
    if release is not None:
        release(0)


@functools.cache
def _malloc_trim() -> ctypes._NamedFuncPointer | None:
    """glibc's; other C libraries have none, and keep less."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
