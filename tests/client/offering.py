"""An origin over TCP that says where its HTTP/3 is, and a network between a client and that."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edgeproxy.config import Address
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.ingress import Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tcp import TcpListener
from edgeproxy.wire.tls import DevCertificate, server_context
from tests.client.h3_edge import read_body, reply
from tests.wire.udp_relay import Faults, UdpRelay


class Origin:
    """Answers with the protocol that a request came over, and counts requests by method."""

    def __init__(self, ca: Path) -> None:
        self.ca = ca
        self.offer: bytes | None = None
        self.calls: Counter[str] = Counter()
        self.statuses: dict[str, int] = {}
        """By protocol, where it is not 200."""
        self.held = asyncio.Event()
        """A request for /hold is here."""
        self.release = asyncio.Event()
        self.tcp: TcpListener
        self.quic: QuicListener
        self.relay: UdpRelay

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.tcp.port}"

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = ingress(scope)
        assert known is not None
        await read_body(receive)
        self.calls[scope["method"]] += 1
        if scope["path"] == "/hold":
            self.held.set()
            await self.release.wait()
        offer = ((b"alt-svc", self.offer),) if self.offer is not None and known.protocol == "h3" else ()
        await reply(send, known.protocol.encode(), self.statuses.get(known.protocol, 200), *offer)


@asynccontextmanager
async def offering(certificate: DevCertificate) -> AsyncIterator[Origin]:
    origin = Origin(certificate.ca)
    context: ssl.SSLContext = server_context(certificate.certificate, certificate.key, ("http/1.1",))
    origin.tcp = TcpListener(origin.app, Limits(), ssl=context, alt_svc=lambda: origin.offer, state={})
    origin.quic = QuicListener(origin.app, Limits(), certificate=certificate.certificate, key=certificate.key, state={})
    await origin.tcp.start(Address("127.0.0.1", 0))
    await origin.quic.start(Address("127.0.0.1", 0))
    origin.relay = UdpRelay(origin.quic.port, seed=1, faults=Faults())
    await origin.relay.start()
    origin.offer = b'h3=":%d"; ma=300' % origin.relay.port
    try:
        yield origin
    finally:
        await origin.quic.drain(0)
        await origin.tcp.drain(0)
        origin.relay.close()
