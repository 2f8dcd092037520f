"""A scripted node: the *model name* of a request picks what goes wrong.

Nothing here waits for a time to pass: behaviours that wait do so for `FakeNode.gate`, or for the connection to end.
`requests` holds what arrived, `abandoned` the models whose answer the peer did not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fake_behaviours import BEHAVIOURS
from tests.fake_exchange import Exchange, Headers, Received


@dataclass
class FakeNode:
    port: int = 0
    requests: list[Received] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    """How often each model was asked for."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    ready: bool = True
    overrides: dict[str, str] = field(default_factory=dict)
    """Model name -> the behaviour that this node shows for it, instead of the one so named."""
    numerics: str = "n"
    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Path of a GET -> what another kind of server answers there."""
    blocked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a behaviour waits for its peer to read."""
    _server: asyncio.Server | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chats(self) -> list[Received]:
        return [received for received in self.requests if received.method == "POST"]

    async def __aenter__(self) -> FakeNode:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuses new connections and resets the open ones, as a killed process does."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self.until(lambda: not self._writers)
        await self._server.wait_closed()
        self._server = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something happened here that makes `condition` true."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(condition)

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while received := await _read_request(reader):
                self.requests.append(received)
                await self._note()
                if not await self._answer(received, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            await self._note()

    async def _answer(self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on. The peer's leaving ends the behaviour, as it would end a generation."""
        exchange = Exchange(self, received, writer)
        if received.method == "GET":
            if received.path in self.pages:
                await exchange.whole(*self.pages[received.path])
            else:
                await exchange.report()
            return True
        model = received.model
        self.seen[model] = self.seen.get(model, 0) + 1
        work = asyncio.ensure_future(BEHAVIOURS[self.overrides.get(model, model)](exchange))
        eof = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((work, eof), return_when=asyncio.FIRST_COMPLETED)
        left = eof.done() or isinstance(work.exception(), ConnectionError)
        if left:
            self.abandoned.append(model)
        for task in (work, eof):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task
        return exchange.complete and not left


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers: Headers = []
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    length = int(dict(headers).get(b"content-length", b"0"))
    return Received(method, path, headers, await reader.readexactly(length))
