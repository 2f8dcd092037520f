"""What the engine says of one request, on the event loop's side."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from edgeproxy.protocol.openai.errors import ApiError
from engine.sequence import Delta


class Generation:
    """The deltas of one request, on the event loop's side."""

    def __init__(self, submitted: float, abort: Callable[[], None]) -> None:
        self.submitted = submitted
        """Engine clock in seconds."""
        self._abort = abort
        self._arrived: deque[Delta | ApiError] = deque()
        self._wake = asyncio.Event()
        self.ended = False
        """The engine has said its last word on this request."""

    async def next(self) -> Delta:
        """Everything that arrived since the last call, as one delta; waits for the first.

        Raises ApiError where the request was refused. Not to be called after a delta with `finish`.
        """
        await self._wake.wait()
        self._wake.clear()
        merged: Delta | None = None
        while self._arrived:
            item = self._arrived.popleft()
            if isinstance(item, ApiError):
                raise item
            merged = item if merged is None else _join(merged, item)
        return merged or Delta(())

    def abort(self) -> None:
        """Ends the request: its memory is free within two steps. Harmless when it has ended; never blocks."""
        if not self.ended:
            self._abort()

    def push(self, item: Delta | ApiError) -> None:
        if isinstance(item, ApiError) or item.finish is not None:
            self.ended = True
        self._arrived.append(item)
        self._wake.set()


def _join(first: Delta, then: Delta) -> Delta:
    told = first if first.timing else then
    return Delta(
        first.tokens + then.tokens,
        then.finish,
        told.timing,
        told.cached,
        told.prefix,
        first.logprobs + then.logprobs,
    )
