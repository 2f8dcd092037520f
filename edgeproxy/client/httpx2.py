"""HTTP/3 for httpx2, and for SDKs built on it:

from edgeproxy.client.httpx2 import Client

client = openai.OpenAI(http_client=Client(verify="ca.pem"))
"""

from __future__ import annotations

from typing import Any

import httpx2

from edgeproxy.client.blocking import Blocking
from edgeproxy.client.h3 import Verify
from edgeproxy.client.transport import Discovering, OnlyHttp3


class AsyncTransport(httpx2.AsyncBaseTransport):
    """To be used on one event loop. No proxies: neither given nor from the environment."""

    def __init__(self, *, verify: Verify = True, only: bool = False) -> None:
        """`only`: HTTP/3 at once, and never TCP; else where the origin says that it has it (Alt-Svc)."""
        self._transport = (OnlyHttp3 if only else Discovering)(httpx2, verify)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = await self._transport.handle(request)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class Transport(httpx2.BaseTransport):
    """The same for callers that wait; it may be shared between threads."""

    def __init__(self, *, verify: Verify = True, only: bool = False) -> None:
        self._transport = Blocking(httpx2, OnlyHttp3 if only else Discovering, verify=verify)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response: httpx2.Response = self._transport.handle(request)
        return response

    def close(self) -> None:
        self._transport.close()


class AsyncClient(httpx2.AsyncClient):
    """`options`: as httpx2 has them."""

    def __init__(self, *, verify: Verify = True, only: bool = False, **options: Any) -> None:
        super().__init__(transport=AsyncTransport(verify=verify, only=only), **options)


class Client(httpx2.Client):
    """`options`: as httpx2 has them."""

    def __init__(self, *, verify: Verify = True, only: bool = False, **options: Any) -> None:
        super().__init__(transport=Transport(verify=verify, only=only), **options)
