"""One way of asking over h1, h2 and h3, so that a behaviour can be required of all three."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgeproxy.config import Address
from edgeproxy.wire.dispatch import PROTOCOLS
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import App
from edgeproxy.wire.tcp import TcpListener
from edgeproxy.wire.tls import DevCertificate, server_context
from tests.client.h3_edge import Library
from tests.client.h3_peer import Peer
from tests.wire.h2_client import H2Client
from tests.wire.raw import RawClient

Fields = tuple[tuple[str, str], ...]


@dataclass
class Answer:
    status: int | None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    whole: bool = True
    """False where the server cut it, as the protocol lets a client see."""

    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert found.keys() >= {"message", "type", "param", "code"}
        return found


class Talker(Protocol):
    """A client with one request at a time under way."""

    async def ask(self, method: str, path: str, *fields: tuple[str, str], end: bool = True) -> None: ...

    async def send(self, data: bytes, *, end: bool) -> None: ...

    async def answer(self, *, to_head: bool = False) -> Answer: ...

    async def until_body(self, size: int) -> None:
        """Returns once that much of the answer's body is there."""

    async def leave(self) -> None:
        """Give the request up."""


class H1Talker:
    def __init__(self, client: RawClient) -> None:
        self._client = client
        self._chunked = False
        self._head: tuple[int, list[tuple[str, str]]] | None = None
        self._body = b""

    async def ask(self, method: str, path: str, *fields: tuple[str, str], end: bool = True) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in fields)]
        self._chunked = not end and not any(name == "content-length" for name, _ in fields)
        if self._chunked:
            lines.append("transfer-encoding: chunked")
        self._head, self._body = None, b""
        await self._client.send("\r\n".join((*lines, "", "")).encode())

    async def send(self, data: bytes, *, end: bool) -> None:
        if self._chunked:
            data = (b"%x\r\n%b\r\n" % (len(data), data) if data else b"") + (b"0\r\n\r\n" if end else b"")
        await self._client.send(data)

    async def answer(self, *, to_head: bool = False) -> Answer:
        try:
            while (head := self._head or await self._client.read_head())[0] == 100:
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(None, whole=False)
        self._head = head
        status, headers = head[0], dict(head[1])
        if to_head or status in (204, 304):
            return Answer(status, headers)
        try:
            if "content-length" in headers:
                self._body += await self._client.read(int(headers["content-length"]) - len(self._body))
            else:
                while chunk := await self._client.read_chunk():
                    self._body += chunk
        except (asyncio.IncompleteReadError, ConnectionError):
            return Answer(status, headers, self._body, whole=False)
        return Answer(status, headers, self._body)

    async def until_body(self, size: int) -> None:
        if self._head is None:
            self._head = await self._client.read_head()
        while len(self._body) < size:
            self._body += await self._client.read_chunk()

    async def leave(self) -> None:
        self._client.reset()


class H2Talker:
    def __init__(self, client: H2Client) -> None:
        self._client = client
        self._stream = 0

    async def ask(self, method: str, path: str, *fields: tuple[str, str], end: bool = True) -> None:
        length = any(name == "content-length" and value != "0" for name, value in fields)
        self._stream = self._client.request(method, path, *fields, end=end and not length)

    async def send(self, data: bytes, *, end: bool) -> None:
        await self._client.send(self._stream, data, end=end)

    async def answer(self, *, to_head: bool = False) -> Answer:
        try:
            reply = await self._client.answer(self._stream)
        except ConnectionError:
            reply = self._client.replies[self._stream]
        status = int(reply.headers[":status"]) if reply.headers else None
        return Answer(status, reply.headers, reply.body, reply.ended)

    async def until_body(self, size: int) -> None:
        while len(self._client.replies[self._stream].body) < size:
            await self._client.step()

    async def leave(self) -> None:
        self._client.reset(self._stream)


class H3Talker:
    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._stream = 0

    async def ask(self, method: str, path: str, *fields: tuple[str, str], end: bool = True) -> None:
        pseudo = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        headers = [(name.encode(), value.encode()) for name, value in (*pseudo, *fields)]
        length = any(name == "content-length" and value != "0" for name, value in fields)
        self._stream = self._peer.request(headers, end=end and not length)

    async def send(self, data: bytes, *, end: bool) -> None:
        self._peer.data(self._stream, data, end=end)

    async def answer(self, *, to_head: bool = False) -> Answer:
        reply = await self._peer.reply(self._stream)
        headers = {name.decode(): value.decode() for name, value in reply.headers.items()}
        return Answer(reply.status, headers, reply.body, reply.ended)

    async def until_body(self, size: int) -> None:
        await self._peer.until(lambda: len(self._peer.at(self._stream).body) >= size)

    async def leave(self) -> None:
        self._peer.cancel(self._stream)


class Listening:
    """One application behind all three protocols; `connect` speaks one of them."""

    def __init__(self, tcp: TcpListener, quic: QuicListener, certificate: DevCertificate, name: str) -> None:
        self.name = name
        self._tcp = tcp
        self._quic = quic
        self._ca = certificate.ca
        self._clients: list[Peer | H2Client | RawClient] = []

    async def connect(self) -> Talker:
        if self.name == "h3":
            peer = await Peer.open(self._quic.port, self._ca)
            self._clients.append(peer)
            return H3Talker(peer)
        context = ssl.create_default_context(cafile=str(self._ca))
        if self.name == "h2":
            context.set_alpn_protocols(["h2"])
            h2 = await H2Client.connect(self._tcp.port, context)
            self._clients.append(h2)
            return H2Talker(h2)
        h1 = await RawClient.connect(self._tcp.port, context)
        self._clients.append(h1)
        return H1Talker(h1)

    def sweep(self, now: float) -> None:
        self._tcp.sweep(now)
        self._quic.sweep(now)

    async def forget(self) -> None:
        """Closes the clients so far."""
        clients, self._clients = self._clients, []
        for client in clients:
            if isinstance(client, Peer):
                client.close()
            else:
                await client.close()

    async def close(self) -> None:
        await self.forget()
        await self.drain(0)

    async def drain(self, timeout_s: float) -> None:
        await asyncio.gather(self._tcp.drain(timeout_s), self._quic.drain(timeout_s))


Serve = Callable[..., Awaitable[Listening]]


async def listen(
    stack: AsyncExitStack, name: str, certificate: DevCertificate, app: App, limits: Limits | None = None
) -> Listening:
    limits, state = limits or Limits(), {"shared": object()}
    context = server_context(certificate.certificate, certificate.key, tuple(PROTOCOLS))
    tcp = TcpListener(app, limits, ssl=context, alt_svc=lambda: None, state=state)
    await tcp.start(Address("127.0.0.1", 0))
    own = certificate
    quic = QuicListener(app, limits, certificate=own.certificate, key=own.key, state=state, library=Library.name)
    await quic.start(Address("127.0.0.1", 0))
    found = Listening(tcp, quic, certificate, name)
    stack.push_async_callback(found.close)
    return found
