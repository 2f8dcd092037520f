"""httpx and httpx2, with an event loop and without one; and the OpenAI SDK on them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import httpx
import httpx2
import openai
import pytest

from edgeproxy.client import httpx as on_httpx
from edgeproxy.client import httpx2 as on_httpx2
from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, echo, read_body, serving, soon

FLAVOURS = pytest.mark.parametrize(
    ("ours", "theirs"), [(on_httpx, httpx), (on_httpx2, httpx2)], ids=["httpx", "httpx2"]
)
CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[%b]}\n\n'


async def chat(scope: Scope, receive: Receive, send: Send) -> None:
    assert scope["path"] == "/v1/chat/completions"
    await read_body(receive)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for word in (b"over", b" h3"):
        choice = b'{"index":0,"delta":{"content":"%b"}}' % word
        await send({"type": "http.response.body", "body": CHUNK % choice, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def aside(work: Callable[[], Any]) -> Any:
    """What callers without a loop do, beside the server's."""
    return await asyncio.to_thread(work)


@FLAVOURS
async def test_an_openai_client_streams_over_http3(
    ours: ModuleType, theirs: ModuleType, certificate: DevCertificate
) -> None:
    options: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}
    async with serving(chat, certificate) as edge, ours.AsyncClient(verify=edge.ca, only=True) as http:
        client = openai.AsyncOpenAI(base_url=edge.url + "/v1", api_key="none", http_client=http)
        stream = await client.chat.completions.create(**options)
        assert [chunk.choices[0].delta.content async for chunk in stream] == ["over", " h3"]

        def wait() -> list[str | None]:
            with ours.Client(verify=edge.ca, only=True) as http:
                sdk = openai.OpenAI(base_url=edge.url + "/v1", api_key="none", http_client=http)
                return [chunk.choices[0].delta.content for chunk in sdk.chat.completions.create(**options)]

        assert await aside(wait) == ["over", " h3"]


@FLAVOURS
async def test_bodies_that_are_made_piece_by_piece_arrive_whole(
    ours: ModuleType, theirs: ModuleType, certificate: DevCertificate
) -> None:
    def pieces() -> Iterator[bytes]:
        for i in range(20):
            yield b"%d," % i * 1000

    async with serving(echo, certificate) as edge:

        def wait() -> bytes:
            with ours.Client(verify=edge.ca, only=True) as http:
                content: bytes = http.post(edge.url, content=pieces()).content
                return content

        assert await aside(wait) == b"POST / " + b"".join(pieces())


@FLAVOURS
async def test_errors_are_the_flavours_own(ours: ModuleType, theirs: ModuleType, certificate: DevCertificate) -> None:
    def wait() -> None:
        with ours.Client(verify=False, only=True, timeout=20) as http, pytest.raises(theirs.ConnectError):
            http.get("https://127.0.0.1:1/")

    await aside(wait)
    async with ours.AsyncClient(verify=False, only=True) as http:
        with pytest.raises(theirs.UnsupportedProtocol):
            await http.get("http://127.0.0.1:1/")


async def test_closing_a_response_early_cancels_it_at_the_server(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.flood, certificate) as edge:

        def wait() -> None:
            with on_httpx.Client(verify=edge.ca, only=True) as http, http.stream("GET", edge.url) as response:
                next(response.iter_raw())

        await aside(wait)
        await soon(probe.send_failed)


async def test_threads_share_a_client(certificate: DevCertificate) -> None:
    together, addresses = threading.Barrier(5), set[object]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.add(scope["client"])
        await echo(scope, receive, send)

    async with serving(app, certificate, Limits()) as edge:
        with on_httpx2.Client(verify=edge.ca, only=True) as http:

            def wait() -> str:
                together.wait(20)
                return http.get(edge.url).text

            assert await asyncio.gather(*[aside(wait) for _ in range(5)]) == ["GET / "] * 5
    assert len(addresses) == 1
