"""Requests over HTTP/3 where the origin offers it (Alt-Svc, RFC 7838), and over TCP wherever that does not work.

Connections are raced, never requests: HTTP/3 has a short start, after which the request that waits for it goes over TCP
(as RFC 8305 has it for addresses). So no request waits long for UDP that nobody answers, and none is sent twice once
the server may have looked at it, unless it may be repeated (RFC 9110 section 9.2.2).
"""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic
from typing import Any

from edgeproxy.client.altsvc import AltSvc, Endpoint
from edgeproxy.client.connection import Connection, StreamFailed
from edgeproxy.client.h3 import Api, Http3, Timeouts, Verify

HEAD_START_S = 0.25
"""What a request waits for an HTTP/3 connection before it goes over TCP (RFC 8305 section 5)."""
ATTEMPT_S = 4.0
"""After so long an alternative that does not answer counts as broken."""
MISDIRECTED = 421
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})


class Discovering:
    """The first request to an origin goes over TCP; once it has offered HTTP/3, a connection is made aside, and the
    next requests use it."""

    def __init__(self, api: Api, verify: Verify) -> None:
        self._api = api
        self._http3 = Http3(api, verify)
        # HTTP/1.1: closing an answer early ends it at the server, which httpx does not tell over HTTP/2.
        self._tcp = api.AsyncHTTPTransport(verify=_context(verify))
        self._known = AltSvc()
        self._attempts: dict[Endpoint, _Attempt] = {}

    async def handle(self, request: Any) -> Any:
        """Raises what the flavour's own transport does."""
        if request.url.scheme != "https":
            return await self._tcp.handle_async_request(request)
        origin = origin_of(request)
        endpoint = self._known.endpoint(origin, monotonic())
        if endpoint is None:
            return await self._over_tcp(request, origin, None)
        connection = await self._connection(endpoint, origin)
        if connection is None:
            return await self._over_tcp(request, origin, endpoint)
        try:
            response = await self._over_http3(request, origin, endpoint, connection)
        except StreamFailed as failure:
            if connection.lost:
                self._known.broke(endpoint, monotonic())
            if not may_repeat(self._api, request, failure):
                raise self._api.ReadError(str(failure), request=request) from failure
        else:
            if response.status_code != MISDIRECTED or not _replayable(self._api, request):
                return response
            await response.aclose()  # this alternative does not answer for the origin (RFC 7838 section 6)
            self._known.broke(endpoint, monotonic())
        return await self._over_tcp(request, origin, None)

    async def aclose(self) -> None:
        for attempt in self._attempts.values():
            attempt.task.cancel()
        await asyncio.gather(*(attempt.task for attempt in self._attempts.values()), return_exceptions=True)
        self._http3.close()
        await self._tcp.aclose()

    async def _over_http3(self, request: Any, origin: Endpoint, endpoint: Endpoint, connection: Connection) -> Any:
        used = (b"alt-used", str(endpoint).encode())
        response = await self._http3.send(request, connection, [used])
        self._known.works(endpoint)
        self._learn(response, origin)
        return response

    async def _over_tcp(self, request: Any, origin: Endpoint, endpoint: Endpoint | None) -> Any:
        """`endpoint`: an alternative that was not there in time, and still is the better choice than none."""
        try:
            response = await self._tcp.handle_async_request(request)
        except (self._api.ConnectError, self._api.ConnectTimeout):
            attempt = self._attempts.get(endpoint) if endpoint is not None else None
            connection = await attempt.result() if attempt is not None else None
            if endpoint is None or connection is None:
                raise
            try:
                return await self._over_http3(request, origin, endpoint, connection)
            except StreamFailed as failure:
                raise self._api.ReadError(str(failure), request=request) from failure
        self._learn(response, origin)
        return response

    def _learn(self, response: Any, origin: Endpoint) -> None:
        now = monotonic()
        self._known.told(origin, response.headers.get_list("alt-svc"), now)
        endpoint = self._known.endpoint(origin, now)
        if endpoint is not None and self._http3.ready(endpoint) is None:
            self._attempt(endpoint, origin)

    async def _connection(self, endpoint: Endpoint, origin: Endpoint) -> Connection | None:
        """One that is known to live, within what is left of its short start; else None."""
        connection = self._http3.ready(endpoint)
        if connection is not None and not connection.quiet:
            return connection
        attempt = self._attempt(endpoint, origin)
        await asyncio.wait((attempt.task,), timeout=max(0.0, attempt.began + HEAD_START_S - monotonic()))
        return await attempt.result() if attempt.task.done() else None

    def _attempt(self, endpoint: Endpoint, origin: Endpoint) -> _Attempt:
        """The one that is under way, or a new one."""
        attempt = self._attempts.get(endpoint)
        if attempt is None:
            attempt = self._attempts[endpoint] = _Attempt(self._try(endpoint, origin))
        return attempt

    async def _try(self, endpoint: Endpoint, origin: Endpoint) -> Connection | None:
        try:
            async with asyncio.timeout(ATTEMPT_S):
                connection = await self._http3.connect(endpoint, origin.host)
                if not connection.quiet or await connection.ping():
                    return connection
        except OSError:  # TimeoutError is one
            pass
        finally:
            del self._attempts[endpoint]
        self._http3.retire(endpoint)
        self._known.broke(endpoint, monotonic())
        return None


class OnlyHttp3:
    """Nothing but HTTP/3, at the origin's own port: for servers that are known to speak it, and for tests."""

    def __init__(self, api: Api, verify: Verify) -> None:
        self._api = api
        self._http3 = Http3(api, verify)

    async def handle(self, request: Any) -> Any:
        """Raises the flavour's ConnectError, ConnectTimeout, ReadError, ReadTimeout, WriteTimeout."""
        if request.url.scheme != "https":
            raise self._api.UnsupportedProtocol("HTTP/3 needs an https:// URL", request=request)
        try:
            return await self._send(request)
        except StreamFailed as failure:
            if not may_repeat(self._api, request, failure):
                raise self._api.ReadError(str(failure), request=request) from failure
        self._http3.retire(origin_of(request))
        try:
            return await self._send(request)
        except StreamFailed as failure:
            raise self._api.ReadError(str(failure), request=request) from failure

    async def aclose(self) -> None:
        self._http3.close()

    async def _send(self, request: Any) -> Any:
        origin = origin_of(request)
        async with Timeouts(request)("connect", self._api.ConnectTimeout):
            try:
                connection = await self._http3.connect(origin, origin.host)
            except TimeoutError:
                raise
            except OSError as error:
                raise self._api.ConnectError(f"no HTTP/3 with {origin.host}: {error}", request=request) from error
        return await self._http3.send(request, connection, [])


class _Attempt:
    """To get a connection that lives: a handshake, or a sign of life of one that has been quiet."""

    def __init__(self, work: Any) -> None:
        self.began = monotonic()
        self.task: asyncio.Task[Connection | None] = asyncio.get_running_loop().create_task(work)

    async def result(self) -> Connection | None:
        """None where it failed; a waiter that is cancelled does not end it for others."""
        return await asyncio.shield(self.task)


def origin_of(request: Any) -> Endpoint:
    return Endpoint(request.url.host, request.url.port or 443)


def may_repeat(api: Api, request: Any, failure: StreamFailed) -> bool:
    """The server has not looked at it, or looking twice does no harm; nothing of an answer has been seen."""
    return (failure.rejected or request.method in _IDEMPOTENT) and _replayable(api, request)


def _replayable(api: Api, request: Any) -> bool:
    """A body that is in memory; any other is used up."""
    return isinstance(request.stream, api.ByteStream)


def _context(verify: Verify) -> ssl.SSLContext | bool:
    return verify if isinstance(verify, bool) else ssl.create_default_context(cafile=str(verify))
