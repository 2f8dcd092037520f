"""Notices that a client leaves, whatever its request is doing at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Watch:
    """A scope that its client's leaving cancels, and which then raises ClientGone.

    To be entered when the body has been read: from then on `receive()` has only the disconnect to tell. `answered`:
    whether the last byte has been given to the listener, whose `http.disconnect` then means no more than that.
    """

    __slots__ = ("_answered", "_cancels", "_gone", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive, answered: Callable[[], bool]) -> None:
        self._receive = receive
        self._answered = answered
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels = task.cancelling()
        self._watcher = asyncio.get_running_loop().create_task(self._until_gone())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        # As asyncio.timeout does: a cancellation from outside, at the same moment, stays one.
        if self._gone and self._task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise ClientGone from None

    async def _until_gone(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:
            pass
        if not self._answered():
            self._gone = True
            self._task.cancel()
