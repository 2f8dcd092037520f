"""HTTP/3 for httpx, and so for SDKs built on it: `httpx.AsyncClient(transport=H3Transport())`.

client = openai.AsyncOpenAI(base_url="https://127.0.0.1:8443/v1",
                            http_client=httpx.AsyncClient(transport=H3Transport(verify="ca.pem")))
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from aioquic.h3.connection import CONNECTION_SPECIFIC_HEADERS, H3_ALPN
from aioquic.h3.events import Headers
from aioquic.quic.configuration import QuicConfiguration

from edgeproxy.client.connection import Connection, Exchange, StreamFailed

IDLE_TIMEOUT_S = 75.0
STREAM_WINDOW = 1024 * 1024
"""Response octets that wait unread before the server is made to wait."""
_DROPPED = CONNECTION_SPECIFIC_HEADERS | {b"host"}

Origin = tuple[str, int]


class H3Transport(httpx.AsyncBaseTransport):
    """One connection an origin, reused; a new one when it has ended or the server says GOAWAY.

    Timeouts are httpx's (connect, read, write). Closing a response early cancels it at the server. A request that the
    server rejected unseen is sent once more, if its body can be.
    """

    def __init__(self, *, verify: str | Path | bool = True) -> None:
        """`verify`: a file of CA certificates, True for the usual ones, False for none (tests only)."""
        self._verify = verify
        self._connections: dict[Origin, Connection] = {}
        self._retired: list[Connection] = []
        self._locks: dict[Origin, asyncio.Lock] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises httpx.ConnectError, ConnectTimeout, ReadError, ReadTimeout, WriteTimeout."""
        if request.url.scheme != "https":
            raise httpx.UnsupportedProtocol("HTTP/3 needs an https:// URL", request=request)
        timeouts = _Timeouts(request)
        try:
            return await self._exchange(request, timeouts)
        except StreamFailed as failure:
            if not failure.rejected or not isinstance(request.stream, httpx.ByteStream):
                raise httpx.ReadError(str(failure), request=request) from failure
        self._retire(_origin(request.url))
        try:
            return await self._exchange(request, timeouts)
        except StreamFailed as failure:
            raise httpx.ReadError(str(failure), request=request) from failure

    async def aclose(self) -> None:
        for connection in (*self._connections.values(), *self._retired):
            connection.close()
        self._connections.clear()
        self._retired.clear()

    async def _exchange(self, request: httpx.Request, timeouts: _Timeouts) -> httpx.Response:
        async with timeouts("connect", httpx.ConnectTimeout):
            connection = await self._connection(request)
        exchange = connection.request(_request_fields(request), end=False)
        try:
            async with timeouts("write", httpx.WriteTimeout):
                await _send_body(request, exchange)
            async with timeouts("read", httpx.ReadTimeout):
                status, headers = await exchange.head()
        except BaseException:
            exchange.close()
            raise
        body = _Body(exchange, timeouts, request)
        return httpx.Response(status, headers=headers, stream=body, extensions={"http_version": b"HTTP/3"})

    async def _connection(self, request: httpx.Request) -> Connection:
        origin = _origin(request.url)
        async with self._locks.setdefault(origin, asyncio.Lock()):
            connection = self._connections.get(origin)
            if connection is not None and connection.usable:
                return connection
            self._retire(origin)
            try:
                connection = await self._connect(origin)
            except OSError as error:
                raise httpx.ConnectError(f"no HTTP/3 with {request.url.host}: {error}", request=request) from error
            self._connections[origin] = connection
            return connection

    async def _connect(self, origin: Origin) -> Connection:
        host, port = origin
        infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        for *_, address in infos[:-1]:
            try:
                return await Connection.connect(self._configuration(host), address)
            except OSError:
                continue
        return await Connection.connect(self._configuration(host), infos[-1][-1])

    def _configuration(self, host: str) -> QuicConfiguration:
        configuration = QuicConfiguration(
            is_client=True,
            alpn_protocols=H3_ALPN,
            idle_timeout=IDLE_TIMEOUT_S,
            max_stream_data=STREAM_WINDOW,
            max_data=16 * STREAM_WINDOW,
            server_name=host,
        )
        if not isinstance(self._verify, bool):
            configuration.load_verify_locations(cafile=str(self._verify))
        elif not self._verify:
            configuration.verify_mode = ssl.CERT_NONE
        return configuration

    def _retire(self, origin: Origin) -> None:
        """Requests in progress end on the old connection; it closes itself when it has none."""
        old = self._connections.pop(origin, None)
        self._retired = [connection for connection in self._retired if connection.exchanges]
        if old is not None:
            self._retired.append(old)
            old.retire()


class _Timeouts:
    """httpx's `timeout` extension: seconds by name, None for no limit."""

    def __init__(self, request: httpx.Request) -> None:
        self._request = request
        self._seconds: dict[str, float | None] = request.extensions.get("timeout", {})

    @asynccontextmanager
    async def __call__(self, name: str, error: Callable[..., httpx.TimeoutException]) -> AsyncIterator[None]:
        seconds = self._seconds.get(name)
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as cause:
            raise error(f"HTTP/3 {name} took longer than {seconds:g} s", request=self._request) from cause


class _Body(httpx.AsyncByteStream):
    def __init__(self, exchange: Exchange, timeouts: _Timeouts, request: httpx.Request) -> None:
        self._exchange = exchange
        self._timeouts = timeouts
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                async with self._timeouts("read", httpx.ReadTimeout):
                    data = await self._exchange.read()
                if not data:
                    return
                yield data
        except StreamFailed as failure:
            raise httpx.ReadError(str(failure), request=self._request) from failure

    async def aclose(self) -> None:
        self._exchange.close()


def _origin(url: httpx.URL) -> Origin:
    return url.host, url.port or 443


def _request_fields(request: httpx.Request) -> Headers:
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return [
        (b":method", request.method.encode()),
        (b":scheme", b"https"),
        (b":authority", request.headers.get("host", request.url.netloc.decode()).encode()),
        (b":path", request.url.raw_path),
        *(field for field in headers if field[0] not in _DROPPED),
    ]


async def _send_body(request: httpx.Request, exchange: Exchange) -> None:
    assert isinstance(request.stream, httpx.AsyncByteStream)
    async for chunk in request.stream:
        if exchange.stopped:
            break
        if chunk:
            await exchange.write(chunk)
    exchange.end()
