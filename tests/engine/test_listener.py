"""A node's listener on a real socket, under a scripted application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Message, Receive, Send
from engine.http import Scope
from engine.listener import LIMITS, Listener

PATIENCE_S = 20
GET = b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Answers with the path; `/wait` only when it is told to."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] == "/wait":
            self.waiting.set()
            watcher = asyncio.create_task(self._watch(receive))
            try:
                await self.go_on.wait()
            finally:
                watcher.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["raw_path"]})

    async def _watch(self, receive: Receive) -> None:
        message: Message = await receive()
        assert message["type"] == "http.disconnect"
        self.left.set()


@asynccontextmanager
async def listening(app: App, limits: Limits = LIMITS) -> AsyncIterator[tuple[Listener, int]]:
    bound = socket.create_server(("127.0.0.1", 0))
    listener = Listener(app, limits)
    await listener.start(bound)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield listener, bound.getsockname()[1]
    finally:
        await listener.close()


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    async with listening(App()) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/a" + GET % b"/b")
        for path in (b"/a", b"/b"):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            assert await reader.readexactly(2) == path
        writer.close()


async def test_a_client_that_leaves_is_told_of_also_behind_a_pipelined_request() -> None:
    app = App()
    async with listening(app) as (_, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/wait" + GET % b"/b")
        await app.waiting.wait()
        writer.close()
        await app.left.wait()


async def test_what_came_before_the_start_is_answered_after_it() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection("127.0.0.1", bound.getsockname()[1])
    writer.write(GET % b"/early")
    listener = Listener(App())
    await listener.start(bound)
    async with asyncio.timeout(PATIENCE_S):
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()
    await listener.close()


async def test_one_connection_too_many_is_closed_and_the_others_go_on() -> None:
    app = App()
    async with listening(app, LIMITS._replace(connections=1)) as (_, port):
        first, writing = await asyncio.open_connection("127.0.0.1", port)
        writing.write(GET % b"/wait")
        await app.waiting.wait()
        second, turned_away = await asyncio.open_connection("127.0.0.1", port)
        assert await second.read() == b""
        turned_away.close()
        app.go_on.set()
        assert (await first.readline()).startswith(b"HTTP/1.1 200")
        writing.close()


async def test_deadlines_are_looked_at_while_somebody_is_connected_alone() -> None:
    async with listening(App(), LIMITS._replace(first_byte_s=0.0)) as (listener, port):
        assert not listener.sweeps
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"", "nothing came in time"
        writer.close()
        while listener.sweeps:  # noqa: ASYNC110 - its timer, once more
            await asyncio.sleep(0.05)


async def test_its_end_cuts_off_what_does_not_end_and_leaves_nothing() -> None:
    app = App()
    async with listening(app) as (listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle, silent = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET % b"/wait")
        await app.waiting.wait()
        before = len(asyncio.all_tasks())
        await listener.close()
        assert await reader.read() == b""
        assert await idle.read() == b""
        assert app.left.is_set()
        assert len(asyncio.all_tasks()) < before
        assert not listener.sweeps
        writer.close()
        silent.close()
