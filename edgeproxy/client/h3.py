"""Requests of httpx, or of its successor httpx2, over HTTP/3 connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aioquic.h3.connection import CONNECTION_SPECIFIC_HEADERS, H3_ALPN
from aioquic.h3.events import Headers
from aioquic.quic.configuration import QuicConfiguration

from edgeproxy.client.altsvc import Endpoint
from edgeproxy.client.connection import Connection, Exchange, StreamFailed
from edgeproxy.client.race import SocketAddress, addresses, first_of

IDLE_TIMEOUT_S = 75.0
WRITE_BYTES = 64 * 1024
"""Of a body, for which a write's time is meant."""
STREAM_WINDOW = 1024 * 1024
"""Response octets that wait unread before the server is made to wait."""
_DROPPED = CONNECTION_SPECIFIC_HEADERS | {b"host"}

Api = Any
"""The module `httpx` or `httpx2`; their classes are alike, but not each other's."""
Verify = str | Path | bool
"""A file of CA certificates, True for the usual ones, False for none (tests only)."""


class Http3:
    """One connection an endpoint, reused until it has ended or the server says GOAWAY.

    Timeouts are httpx's (connect, read, write). Closing a response early cancels it at the server.
    """

    def __init__(self, api: Api, verify: Verify) -> None:
        """Raises ValueError for a `verify` that is no file of certificates."""
        self._api = api
        self._verify = verify
        _check(verify)
        self._body: Any = type("Body", (_Body, api.AsyncByteStream), {})
        self._connections: dict[Endpoint, Connection] = {}
        self._retired: list[Connection] = []
        self._locks: dict[Endpoint, asyncio.Lock] = {}

    def ready(self, endpoint: Endpoint) -> Connection | None:
        """A connection that takes requests, if there is one."""
        connection = self._connections.get(endpoint)
        return connection if connection is not None and connection.usable else None

    async def connect(self, endpoint: Endpoint, server_name: str) -> Connection:
        """The connection to `endpoint`, which must show a certificate for `server_name`. Raises OSError."""
        async with self._locks.setdefault(endpoint, asyncio.Lock()):
            connection = self.ready(endpoint)
            if connection is None:
                self.retire(endpoint)
                connection = self._connections[endpoint] = await self._connect(endpoint, server_name)
            return connection

    async def send(self, request: Any, connection: Connection, extra: Headers) -> Any:
        """The response, once its head is here. Raises StreamFailed and the flavour's timeouts."""
        timeouts = Timeouts(request)
        exchange = connection.request([*_request_fields(request), *extra], end=False)
        try:
            await self._send_body(request, exchange, timeouts)
            async with timeouts("read", self._api.ReadTimeout):
                status, headers = await exchange.head()
        except BaseException:
            exchange.close()
            raise
        stream = self._body(self._api, exchange, timeouts, request)
        return self._api.Response(status, headers=headers, stream=stream, extensions={"http_version": b"HTTP/3"})

    async def _send_body(self, request: Any, exchange: Exchange, timeouts: Timeouts) -> None:
        """The time is for each piece, as over TCP: a long body over a slow line makes progress."""
        async for chunk in request.stream:
            for at in range(0, len(chunk), WRITE_BYTES):
                if exchange.stopped:  # the answer is on its way; the rest of the body is not wanted
                    break
                async with timeouts("write", self._api.WriteTimeout):
                    await exchange.write(chunk[at : at + WRITE_BYTES])
            if exchange.stopped:
                break
        exchange.end()

    def retire(self, endpoint: Endpoint) -> None:
        """Requests in progress end on the old connection; it closes itself when it has none."""
        old = self._connections.pop(endpoint, None)
        self._retired = [connection for connection in self._retired if connection.exchanges]
        if old is not None:
            self._retired.append(old)
            old.retire()

    def close(self) -> None:
        for connection in (*self._connections.values(), *self._retired):
            connection.close()
        self._connections.clear()
        self._retired.clear()

    async def _connect(self, endpoint: Endpoint, server_name: str) -> Connection:
        def connect(address: SocketAddress) -> Coroutine[Any, Any, Connection]:
            return Connection.connect(self._configuration(server_name), address)

        return await first_of(await addresses(endpoint.host, endpoint.port), connect)

    def _configuration(self, server_name: str) -> QuicConfiguration:
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=H3_ALPN,
            idle_timeout=IDLE_TIMEOUT_S,
            max_stream_data=STREAM_WINDOW,
            max_data=16 * STREAM_WINDOW,
            server_name=server_name,
        )
        if not isinstance(self._verify, bool):
            configuration.load_verify_locations(cafile=str(self._verify))
        elif not self._verify:
            configuration.verify_mode = ssl.CERT_NONE
        return configuration


class Timeouts:
    """httpx's `timeout` extension: seconds by name, None for no limit."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._seconds: dict[str, float | None] = request.extensions.get("timeout", {})

    @asynccontextmanager
    async def __call__(self, name: str, error: Any) -> AsyncIterator[None]:
        """`error`: what is raised when the time is over."""
        seconds = self._seconds.get(name)
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as cause:
            raise error(f"HTTP/3 {name} took longer than {seconds:g} s", request=self._request) from cause


class _Body:
    """Becomes a stream of the flavour by inheriting from its class, too."""

    def __init__(self, api: Api, exchange: Exchange, timeouts: Timeouts, request: Any) -> None:
        self._api = api
        self._exchange = exchange
        self._timeouts = timeouts
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                async with self._timeouts("read", self._api.ReadTimeout):
                    data = await self._exchange.read()
                if not data:
                    return
                yield data
        except StreamFailed as failure:
            raise self._api.ReadError(str(failure), request=self._request) from failure

    async def aclose(self) -> None:
        self._exchange.close()


def _request_fields(request: Any) -> Headers:
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return [
        (b":method", request.method.encode()),
        (b":scheme", b"https"),
        (b":authority", request.headers.get("host", request.url.netloc.decode()).encode()),
        (b":path", request.url.raw_path),
        *(field for field in headers if field[0] not in _DROPPED),
    ]


def _check(verify: Verify) -> None:
    if isinstance(verify, bool):
        return
    try:
        ssl.create_default_context(cafile=str(verify))
    except OSError as error:  # ssl.SSLError is one
        cause = error.strerror or error
        raise ValueError(f"verify={str(verify)!r} is no file of CA certificates in PEM: {cause}") from None
