"""Drives an ASGI application without a server, as a client that may read slowly, wait, or leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import orjson

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.config import Address, Config, GatewayLimits, Listen, NodeConfig, RegionConfig, Tls
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.observe.log import Log
from edgeproxy.observe.trace import Tracer
from edgeproxy.upstream.node import Fleet
from edgeproxy.wire.ingress import SCOPE_KEY, HeadNote, Ingress
from tests.fake_behaviours import BEHAVIOURS
from tests.fake_node import FakeNode

LOCAL = Address("127.0.0.1", 8080)


@dataclass
class Exchange:
    """One request under way: what the client has received so far, and its ways of behaving."""

    task: asyncio.Task[None]
    gone: asyncio.Event
    reading: asyncio.Event
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    ended: bool = False
    waits: bool = False
    """The application is waiting for the client to take something."""
    disconnect_at_end: bool = False
    """`receive` reports a disconnect as soon as the last message is given, which is then taken only once `reading` is
    set again: what real listeners may do."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert {"message", "type", "param", "code"} <= set(error)
        return error

    def events(self) -> list[Any]:
        """The data of the stream's events, as an SDK would see them."""
        found: list[Any] = []
        for block in self.body.decode("utf-8", "strict").replace("\r\n", "\n").split("\n\n"):
            data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
            if data:
                found.append("[DONE]" if data[0] == "[DONE]" else orjson.loads("\n".join(data)))
        return found

    async def until(self, condition: Callable[[Exchange], bool]) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(lambda: condition(self) or self.task.done())
        assert condition(self), "the exchange ended before that"

    async def done(self) -> Exchange:
        async with asyncio.timeout(10):
            await self.task
        return self

    def leave(self) -> None:
        self.gone.set()

    async def take(self, message: Mapping[str, Any]) -> None:
        if self.gone.is_set():
            raise OSError("the client is gone")
        if self.disconnect_at_end and message["type"] == "http.response.body" and not message.get("more_body", False):
            self.gone.set()
            self.reading.clear()
        if not self.reading.is_set():
            self.waits = True
            await self.notify()
            await self.reading.wait()
            self.waits = False
        if message["type"] == "http.response.start":
            assert not self.status, "a second start"
            self.status = message["status"]
            self.headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
        else:
            assert self.status and not self.ended, "a body before the start or after the end"
            self.body += message.get("body", b"")
            self.ended = not message.get("more_body", False)
        await self.notify()

    async def notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def begin(
    app: AsgiApp,
    body: bytes | Mapping[str, Any] = b"",
    *,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Mapping[str, str] | None = None,
    again: list[tuple[bytes, bytes]] | None = None,
    client: str = "127.0.0.1",
    pieces: list[bytes] | None = None,
    client_rtt_s: float | None = None,
    upload_s: float = 0.0,
    note: HeadNote | None = None,
    query: bytes = b"",
) -> Exchange:
    """Starts a request. `again`: header fields behind those, of names that may be there already. `pieces`: its body as
    the listener hands it over, instead of `body` at once. `client_rtt_s`: what a listener of ours would know; None: it
    is a foreign one. `upload_s`: for so long the client has been sending. `note`: of a listener that compares heads;
    to be the same where the head is."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    fields = {"host": "127.0.0.1:8080", "content-type": "application/json"} | {
        name.lower(): value for name, value in (headers or {}).items()
    }
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "root_path": "",
        "headers": [*((name.encode(), value.encode("latin-1")) for name, value in fields.items()), *(again or ())],
        "client": (client, 50000),
        "server": ("127.0.0.1", 8080),
        "extensions": {},
        "state": {},
    }
    incoming = list(pieces) if pieces is not None else [raw]
    gone = asyncio.Event()
    started = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if incoming:
            piece = incoming.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(incoming)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run() -> None:
        await started.wait()
        if client_rtt_s is not None or note is not None:
            known = Ingress("h1", monotonic() - upload_s, lambda: client_rtt_s, note)
            known.last_byte = monotonic()
            known.task = asyncio.current_task()
            scope["extensions"] = {SCOPE_KEY: known}
        await app(scope, receive, exchange.take)

    exchange = Exchange(asyncio.ensure_future(run()), gone, asyncio.Event())
    exchange.reading.set()

    exchange.task.add_done_callback(lambda _: asyncio.ensure_future(exchange.notify()))
    started.set()
    return exchange


async def ask(app: AsgiApp, body: bytes | Mapping[str, Any] = b"", **more: Any) -> Exchange:
    return await begin(app, body, **more).done()


def chat(model: str, *, stream: bool = False, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "prompt-that-must-not-be-logged"}]
    return {"model": model, "messages": messages, "stream": stream} | more


class Lines:
    """A Log whose lines can be read back."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "log").open("wb+", buffering=0)
        self.log = Log(self._file.fileno())

    @property
    def text(self) -> bytes:
        self.log.flush()
        return Path(self._file.name).read_bytes()

    @property
    def requests(self) -> list[dict[str, Any]]:
        records = [orjson.loads(line) for line in self.text.splitlines()]
        return [record for record in records if record["event"] == "request"]

    def close(self) -> None:
        self.log.flush()
        self._file.close()


@dataclass
class Edge:
    """A proxy over fake nodes, `near` before `far`."""

    app: AsgiApp
    admin: AsgiApp
    fleet: Fleet
    near: FakeNode
    far: FakeNode
    lines: Lines

    @property
    def in_flight(self) -> int:
        return sum(node.in_flight for node in self.fleet.nodes)


def config(near: str, far: str, limits: GatewayLimits, hosts: tuple[str, ...] = ()) -> Config:
    models = tuple(BEHAVIOURS)
    return Config(
        path=Path("regions.yaml"),
        listen=Listen(LOCAL, None, Address("127.0.0.1", 9080)),
        tls=Tls(None, None),
        regions=(
            RegionConfig("near", (NodeConfig("near-1", "native", near, (*models, "near-only", "near-*")),)),
            RegionConfig("far", (NodeConfig("far-1", "native", far, models),)),
        ),
        hosts=hosts,
        limits=limits,
    )


@asynccontextmanager
async def edge(
    folder: Path,
    limits: GatewayLimits | None = None,
    keys: Keys | None = None,
    hosts: tuple[str, ...] = (),
    tracer: Tracer | None = None,
    **changes: Any,
) -> AsyncIterator[Edge]:
    """The nodes count as ready; nothing probes them. `changes`: other fields of the configuration."""
    async with FakeNode() as near, FakeNode() as far:
        settings = replace(config(near.url, far.url, limits or GatewayLimits(), hosts), **changes)
        fleet = Fleet.from_config(settings, token="node-token-secret")
        for node in fleet.nodes:
            node.up(0.0)
        lines = Lines(folder)
        keys, log, started = keys or Keys(), lines.log, 1_760_000_000
        app, admin, _ = build(settings, fleet, keys, log, Random(1), started, tracer=tracer)
        try:
            yield Edge(app, admin, fleet, near, far, lines)
        finally:
            fleet.close()
            lines.close()


__all__ = ["Edge", "Exchange", "ask", "begin", "chat", "edge"]
