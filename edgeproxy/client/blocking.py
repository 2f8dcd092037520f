"""The transports for callers without an event loop: it runs in a thread of its own, and they wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from edgeproxy.client.h3 import Api
from edgeproxy.client.transport import Discovering, OnlyHttp3

T = TypeVar("T")


class LoopThread:
    """An event loop that turns until `close`."""

    def __init__(self) -> None:
        turning: Future[asyncio.AbstractEventLoop] = Future()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._turn(turning)), name="edgeproxy client", daemon=True
        )
        self._thread.start()
        self._loop = turning.result()

    async def _turn(self, turning: Future[asyncio.AbstractEventLoop]) -> None:
        turning.set_result(asyncio.get_running_loop())
        await self._ended.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises what it raises; whoever stops waiting cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()


class Blocking:
    """`transport`, made and used in the loop's thread."""

    def __init__(self, api: Api, transport: type[Discovering | OnlyHttp3], **options: Any) -> None:
        self._api = api
        self._thread = LoopThread()
        try:
            self._transport = self._thread.run(_made(transport, api, options))
        except BaseException:
            self._thread.close()
            raise
        self._pulled: Any = type("Pulled", (_Pulled, api.AsyncByteStream), {})
        self._pushed: Any = type("Pushed", (_Pushed, api.SyncByteStream), {})

    def handle(self, request: Any) -> Any:
        if not isinstance(request.stream, self._api.AsyncByteStream):
            request.stream = self._pulled(request.stream)
        response = self._thread.run(self._transport.handle(request))
        response.stream = self._pushed(self._thread, response.stream)
        return response

    def close(self) -> None:
        self._thread.run(self._transport.aclose())
        self._thread.close()


class _Pulled:
    """A request's body, which may block to be made, as the loop wants it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = iter(self._stream)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


class _Pushed:
    """A response's body, as the caller wants it."""

    def __init__(self, thread: LoopThread, stream: Any) -> None:
        self._thread = thread
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        pieces = aiter(self._stream)
        while (piece := self._thread.run(_next(pieces))) is not None:
            yield piece

    def close(self) -> None:
        self._thread.run(self._stream.aclose())


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _made(transport: Any, api: Api, options: dict[str, Any]) -> Any:
    return transport(api, **options)
