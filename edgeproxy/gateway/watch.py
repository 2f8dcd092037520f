"""Notices that a client leaves, whatever its request is doing at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.ingress import Ingress

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Watch:
    """A scope that its client's leaving cancels, and which then raises ClientGone. The end of a drain cancels it too:
    then it raises ApiError 503.

    Our own listeners tell of it through the Ingress, without a task that waits beside each request. Under others
    (`ingress` is None) such a task listens to `receive()`; the scope is therefore entered when the body has been read.
    `answered`: whether the last byte has been given to the listener, whose `http.disconnect` then means no more.
    """

    __slots__ = ("_answered", "_cancels", "_gone", "_ingress", "_listener", "_receive", "_stopped", "_task")

    def __init__(self, ingress: Ingress | None, receive: Receive, answered: Callable[[], bool]) -> None:
        self._ingress = ingress
        self._receive = receive
        self._answered = answered
        self._listener: asyncio.Task[None] | None = None
        self._gone = self._stopped = False

    def __enter__(self) -> None:
        ingress = self._ingress
        # asyncio.current_task() costs a system call in Python 3.11.
        task = ingress.task if ingress is not None else asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels = task.cancelling()
        if ingress is None:
            self._listener = asyncio.get_running_loop().create_task(self._listen())
            return
        ingress.on_gone = self._leave
        ingress.on_stop = self._stop
        if ingress.gone:
            self._leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ingress is not None:
            self._ingress.on_gone = self._ingress.on_stop = None
        if self._listener is not None:
            self._listener.cancel()
        # As asyncio.timeout does: a cancellation from outside, at the same moment, stays one.
        if not (self._gone or self._stopped) or self._task.uncancel() > self._cancels:
            return
        if kind is asyncio.CancelledError:
            raise (ClientGone() if self._gone else _stopping()) from None

    def _leave(self) -> None:
        if not self._stopped:
            self._task.cancel()
        self._gone = True

    def _stop(self) -> None:
        if not (self._gone or self._answered()):
            self._stopped = True
            self._task.cancel()

    async def _listen(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:
            pass
        if not self._answered():
            self._leave()


def _stopping() -> ApiError:
    return ApiError(
        503,
        "the proxy is going down and has waited for this answer as long as it may; send the request again",
        "proxy_stopping",
        headers=((b"retry-after", b"1"),),
    )
