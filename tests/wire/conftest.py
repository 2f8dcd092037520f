"""Fixtures of the listeners: every TCP test runs on both event loops, and with and without TLS where it serves."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args

import pytest
import uvloop

from edgeproxy.config import Address, QuicLibrary
from edgeproxy.wire.dispatch import PROTOCOLS
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import App
from edgeproxy.wire.tcp import TcpListener
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate, server_context
from tests.client.h3_edge import Library
from tests.wire.h2_client import H2Client
from tests.wire.raw import PATIENCE_S, RawClient

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"

_ON_BOTH_LOOPS = ("test_tcp", "test_h1", "test_h2", "test_handover")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name.startswith(_ON_BOTH_LOOPS):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> DevCertificate:
    return make_dev_certificate(tmp_path_factory.mktemp("tls"))


_ON_BOTH_QUICS = (
    "test_h3_conformance test_h3_disconnect test_h3_drain test_h3_endpoint test_h3_failure test_h3_limits "
    "test_h3_migration test_h3_network test_h3_requests test_h3_resumption"
).split()

_OTHERWISE_ON_QH3 = {
    "test_an_upload_that_nobody_reads_stops_at_the_window": "a connection's streams share one bound of what is unread",
    "test_a_flood_of_quic_frames_that_bring_nothing_ends_its_connection_alone": "they cost it a hundredth",
    "test_an_upload_goes_on_across_new_addresses_and_new_ids": "it follows a peer to three addresses, and then drains",
    "test_handshakes_have_one_share_of_the_loop_together_and_are_not_hoarded": "nothing of a library is in it",
}
"""What stands in their place is in test_qh3_internals.py."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in _ON_BOTH_QUICS:
        both = metafunc.function.__name__ not in _OTHERWISE_ON_QH3
        metafunc.parametrize("quic_library", get_args(QuicLibrary) if both else ["aioquic"], indirect=True)


@pytest.fixture(autouse=True)
def quic_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> QuicLibrary:
    """What HTTP/3's listeners run on."""
    library: QuicLibrary = getattr(request, "param", "aioquic")
    monkeypatch.setattr(Library, "name", library)
    return library


class Edge:
    """A running listener and clients of it."""

    def __init__(self, listener: TcpListener, trust: Path | None) -> None:
        self.listener = listener
        self.port = listener.port
        self.tls = trust is not None
        self.trust = trust
        self._clients: list[RawClient | H2Client] = []

    def client_context(self, *alpn: str) -> ssl.SSLContext | None:
        if self.trust is None:
            return None
        context = ssl.create_default_context(cafile=str(self.trust))
        if alpn:
            context.set_alpn_protocols(list(alpn))
        return context

    async def connect(self, *alpn: str) -> RawClient:
        client = await RawClient.connect(self.port, self.client_context(*alpn))
        self._clients.append(client)
        return client

    async def connect_h2(self, window: int | None = None) -> H2Client:
        """By ALPN over TLS, by prior knowledge on a plain port. `window`: the client's, per stream."""
        client = await H2Client.connect(self.port, self.client_context("h2"), window)
        self._clients.append(client)
        return client

    def later(self, seconds: float) -> None:
        """Lets the listener's deadlines of the next `seconds` pass."""
        self.listener.sweep(time.monotonic() + seconds)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self.listener.drain(0)


Serve = Callable[..., Awaitable[Edge]]


@pytest.fixture
async def serve_plain() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as edges:
        yield lambda app, limits=None, **options: _serve(edges, app, limits, None, **options)


@pytest.fixture
async def serve_tls(certificate: DevCertificate) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as edges:
        yield lambda app, limits=None, **options: _serve(edges, app, limits, certificate, **options)


@pytest.fixture(params=["plain", "tls"])
def serve(request: pytest.FixtureRequest, serve_plain: Serve, serve_tls: Serve) -> Serve:
    """`await serve(app, limits, alt_svc=, state=)` starts a listener; both it and its clients end with the test."""
    return serve_plain if request.param == "plain" else serve_tls


async def _serve(
    edges: AsyncExitStack,
    app: App,
    limits: Limits | None,
    certificate: DevCertificate | None,
    *,
    alt_svc: bytes | None = None,
    state: dict[str, Any] | None = None,
) -> Edge:
    context = server_context(certificate.certificate, certificate.key, tuple(PROTOCOLS)) if certificate else None
    listener = TcpListener(
        app, limits or Limits(), ssl=context, alt_svc=lambda: alt_svc, state=state if state is not None else {}
    )
    await listener.start(Address("127.0.0.1", 0))
    edge = Edge(listener, certificate.ca if certificate else None)
    edges.push_async_callback(edge.close)
    return edge


async def until_connections(edge: Edge, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while edge.listener.connections != count:  # noqa: ASYNC110 - a counter, not an event
            await asyncio.sleep(0.001)
