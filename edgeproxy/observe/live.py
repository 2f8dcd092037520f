"""What the dashboard shows, once a second, to as many browsers as look: a snapshot first, then what has changed.

There is no queue a client could fill. The last minutes' changes are kept once for everybody; each client has a place in
them, and one that was away for longer, or reads too slowly, gets a snapshot again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson

from edgeproxy.observe.history import KEPT, SLICE_S

TICK_S = 1.0
KEPT_TICKS = 120
HEARTBEAT_S = 15.0
"""A comment after so long without an event keeps what is between the client and us from cutting the connection."""
MAX_CLIENTS = 32
RETRY_MS = 3000

View = Callable[[float, float], dict[str, Any]]
"""(start of the part of the history wanted, now), both in Unix seconds, to what there is to show."""


class Live:
    """`run()` it beside the listeners. `epoch` tells this process's events from an earlier one's."""

    def __init__(
        self,
        view: View,
        latest: Callable[[], dict[str, Any]],
        changes: Callable[[], dict[str, Any]],
        epoch: int,
        clock: Callable[[], float],
    ) -> None:
        """`latest`: the last requests. `changes`: those since it was last asked. `clock`: Unix seconds."""
        self._view = view
        self._changes = changes
        self._latest = latest
        self._epoch = epoch
        self._clock = clock
        self._ticks: deque[bytes] = deque(maxlen=KEPT_TICKS)
        self._count = 0
        """Ticks so far; the newest kept is number `_count`."""
        self._news = asyncio.Condition()
        self._ended = False
        self.clients = 0

    async def run(self, wait: Callable[[float], Any] = asyncio.sleep) -> None:
        """Until cancelled; then every stream ends, so that nobody waits for the page of a proxy that stops."""
        try:
            while True:
                await wait(TICK_S)
                await self.tick()
        finally:
            self._ended = True
            with contextlib.suppress(RuntimeError):
                async with self._news:
                    self._news.notify_all()

    async def tick(self) -> None:
        """Costs nothing while nobody looks: who comes then begins with a snapshot."""
        if self.clients:
            now = self._clock()
            fresh = {**self._view(now - 2 * SLICE_S, now), **self._changes()}
            self._count += 1
            self._ticks.append(_event("delta", f"{self._epoch}-{self._count}", fresh))
        elif self._ticks:
            self._ticks.clear()
            self._count += 1  # nobody can go on from before the gap
        async with self._news:
            self._news.notify_all()

    async def events(self, last_event_id: str | None) -> AsyncGenerator[bytes, None]:
        """Server-sent events. `last_event_id`: of a client that comes back."""
        self.clients += 1
        try:
            seen = self._place(last_event_id)
            yield b"retry: %d\n\n" % RETRY_MS
            while not self._ended:
                if seen is None or not self._count - len(self._ticks) <= seen <= self._count:
                    seen = self._count
                    now = self._clock()
                    whole = {**self._view(now - KEPT * SLICE_S, now), **self._latest()}
                    yield _event("snapshot", f"{self._epoch}-{seen}", whole)
                while seen < self._count and seen >= self._count - len(self._ticks):
                    seen += 1
                    yield self._ticks[seen - 1 - self._count + len(self._ticks)]
                if not await self._more(seen):
                    yield b":\n\n"
        finally:
            self.clients -= 1

    async def _more(self, seen: int) -> bool:
        """Whether there was news before it was time for a heartbeat."""
        try:
            async with asyncio.timeout(HEARTBEAT_S), self._news:
                await self._news.wait_for(lambda: self._count > seen or self._ended)
        except TimeoutError:
            return False
        return True

    def _place(self, last_event_id: str | None) -> int | None:
        epoch, _, count = (last_event_id or "").partition("-")
        return int(count) if epoch == str(self._epoch) and count.isdecimal() and len(count) < 16 else None


def _event(name: str, identity: str, value: object) -> bytes:
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), identity.encode(), orjson.dumps(value, default=str))
