"""A running HTTP/3 listener, applications to put behind it, and peers of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from edgeproxy.config import Address, QuicLibrary
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.ingress import Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import App, Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_peer import Peer


class Library:
    """What the listeners of a test run on; the fixture `quic_library` says so for a test."""

    name: QuicLibrary = "aioquic"


class Edge:
    def __init__(self, listener: QuicListener, certificate: DevCertificate) -> None:
        self.listener = listener
        self.port = listener.port
        self.ca = certificate.ca
        self._peers: list[Peer] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def peer(self, **options: Any) -> Peer:
        peer = await Peer.open(self.port, self.ca, **options)
        self._peers.append(peer)
        return peer

    def later(self, seconds: float) -> None:
        """Let the deadlines of the next `seconds` pass."""
        self.listener.sweep(time.monotonic() + seconds)

    async def close(self) -> None:
        for peer in self._peers:
            peer.close()
        await self.listener.drain(0)


@asynccontextmanager
async def serving(
    app: App,
    certificate: DevCertificate,
    limits: Limits | None = None,
    state: dict[str, Any] | None = None,
    qlog: Path | None = None,
    counts: QuicCounts | None = None,
) -> AsyncIterator[Edge]:
    own = certificate
    listener = QuicListener(
        app,
        limits or Limits(),
        certificate=own.certificate,
        key=own.key,
        state=state or {},
        qlog=qlog,
        counts=counts,
        library=Library.name,
    )
    await listener.start(Address("127.0.0.1", 0))
    edge = Edge(listener, certificate)
    try:
        yield edge
    finally:
        await edge.close()


async def read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("disconnected before the body ended")
        body += message["body"]
        if not message["more_body"]:
            return bytes(body)


async def reply(send: Send, body: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Method, target and body, in one piece; under /stream in pieces."""
    body = await read_body(receive)
    text = scope["method"].encode() + b" " + scope["path"].encode() + b" " + body
    if not scope["path"].startswith("/stream"):
        await reply(send, text)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for piece in (text[:5], text[5:9], text[9:]):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


class Probe:
    """An application that tells the test what happens to it, and goes on when told."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.send_failed = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.calls = 0
        self.sent = 0

    async def wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read to the disconnect, then see what `send` says."""
        self.calls += 1
        known = ingress(scope)
        assert known is not None
        assert known.task is asyncio.current_task()
        told = asyncio.Event()
        known.on_gone = told.set
        self.started.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        assert known.gone
        assert told.is_set(), "on_gone comes first"
        self.disconnected.set()
        try:
            await reply(send, b"too late")
        except OSError:
            self.send_failed.set()
            raise

    async def flood(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send without end, and count."""
        self.calls += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(8192), "more_body": True})
                self.sent += 8192
                self.started.set()
        except OSError:
            self.send_failed.set()
            raise

    async def hold(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer when told, without looking at the request."""
        self.calls += 1
        self.started.set()
        await self.go.wait()
        await reply(send, b"held")

    async def hang(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Notice nothing until cancelled."""
        self.calls += 1
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(20):
        await event.wait()
