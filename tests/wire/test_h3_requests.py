"""Requests and answers over HTTP/3, with two independent clients and one loop each of asyncio and uvloop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pycurl
import pytest
import uvloop
from curl_cffi import CurlHttpVersion, requests

from edgeproxy.wire.ingress import Ingress, Scope, ingress
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import echo, read_body, reply, serving
from tests.client.h3_peer import get, post

BIG = bytes(range(256)) * 2048
HTTP_VERSION_3ONLY = 31


@dataclass
class Answer:
    status: int
    version: int
    body: bytes


Client = Callable[[str, Path, bytes | None], Answer]


def with_curl_cffi(url: str, ca: Path, body: bytes | None) -> Answer:
    """curl on BoringSSL and ngtcp2."""
    with requests.Session(http_version=CurlHttpVersion.V3ONLY, timeout=20) as session:
        session.verify = str(ca)
        response = session.get(url) if body is None else session.post(url, data=body)
        return Answer(response.status_code, response.http_version // 10, response.content)


def with_pycurl(url: str, ca: Path, body: bytes | None, *, head: bool = False) -> Answer:
    """curl on OpenSSL and nghttp3."""
    curl, received = pycurl.Curl(), io.BytesIO()
    try:
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.HTTP_VERSION, HTTP_VERSION_3ONLY)
        curl.setopt(pycurl.CAINFO, str(ca))
        curl.setopt(pycurl.TIMEOUT, 20)
        curl.setopt(pycurl.WRITEDATA, received)
        curl.setopt(pycurl.NOBODY, head)
        if body is not None:
            curl.setopt(pycurl.POSTFIELDS, body)
        curl.perform()
        return Answer(
            curl.getinfo(pycurl.RESPONSE_CODE), curl.getinfo(pycurl.INFO_HTTP_VERSION) // 10, received.getvalue()
        )
    finally:
        curl.close()


clients = pytest.mark.parametrize("client", [with_curl_cffi, with_pycurl])


@clients
@pytest.mark.parametrize("path", ["/whole", "/stream"])
@pytest.mark.parametrize("body", [None, b"hello", BIG], ids=["get", "small", "large"])
async def test_independent_clients_get_what_the_application_sent(
    client: Client, path: str, body: bytes | None, certificate: DevCertificate
) -> None:
    async with serving(echo, certificate) as edge:
        answer = await asyncio.to_thread(client, edge.url + path, edge.ca, body)
    method = b"GET" if body is None else b"POST"
    assert (answer.status, answer.version) == (200, 3)
    assert answer.body == method + b" " + path.encode() + b" " + (body or b"")


@clients
async def test_an_early_refusal_reaches_a_client_that_still_uploads(
    client: Client, certificate: DevCertificate
) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"no", 403)

    async with serving(refuse, certificate) as edge:
        answer = await asyncio.to_thread(client, edge.url, edge.ca, BIG)
    assert (answer.status, answer.body) == (403, b"no")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_both_event_loops_serve(new_loop: Callable[[], asyncio.AbstractEventLoop], certificate: DevCertificate) -> None:
    async def main() -> list[Answer]:
        async with serving(echo, certificate) as edge:
            calls = [asyncio.to_thread(with_curl_cffi, edge.url + "/stream", edge.ca, BIG) for _ in range(3)]
            answers = await asyncio.gather(*calls)
            await edge.listener.drain(10)
            return answers

    with asyncio.Runner(loop_factory=new_loop) as runner:
        answers = runner.run(main())
    assert [answer.body for answer in answers] == [b"POST /stream " + BIG] * 3


async def test_the_scope_says_what_was_asked_and_by_whom(certificate: DevCertificate) -> None:
    scopes: list[Scope] = []
    found: list[Ingress] = []
    now = asyncio.get_running_loop().time

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        known = ingress(scope)
        assert known is not None
        found.append(known)
        await reply(send, b"")

    shared = {"pool": object()}
    async with serving(app, certificate, state=shared) as edge:
        before = now()
        peer = await edge.peer()
        fields = [(b"cookie", b"a=1"), (b"x-one", b"1"), (b"cookie", b"b=2"), (b"te", b"trailers")]
        await peer.reply(peer.request([*get("/v1/caf%C3%A9?q=%20"), *fields]))
        after, rtt = now(), found[0].rtt()
    scope = scopes[0]
    assert (scope["type"], scope["http_version"], scope["method"], scope["scheme"]) == ("http", "3", "GET", "https")
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/v1/café", b"/v1/caf%C3%A9", b"q=%20")
    assert scope["headers"] == [
        (b"host", b"localhost"),
        (b"x-one", b"1"),
        (b"te", b"trailers"),
        (b"cookie", b"a=1; b=2"),
    ]
    assert scope["client"][0] == "127.0.0.1"
    assert scope["server"] == ("127.0.0.1", edge.port)
    assert scope["state"] == shared and scope["state"] is not shared
    assert found[0].protocol == "h3"
    assert before <= found[0].first_byte <= after
    assert rtt is not None and 0 < rtt < 1


async def test_responses_are_made_fit_for_http3(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(
            send, b"ok", 200, (b"X-Upper", b" padded "), (b"Connection", b"close"), (b"Keep-Alive", b"timeout=5")
        )

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        answer = await peer.reply(peer.request(get()))
        again = await peer.reply(peer.request(get()))
    assert set(answer.headers) == {b":status", b"x-upper", b"date"}
    assert answer.headers[b"x-upper"] == b"padded"
    assert again.body == b"ok", "the connection goes on"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_responses_that_have_no_body_get_none(method: str, status: int, certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"never", status, (b"content-length", b"5"))

    async with serving(app, certificate) as edge:
        answer = await asyncio.to_thread(with_pycurl, edge.url, edge.ca, None, head=method == "HEAD")
    assert answer == Answer(status, 3, b"")


async def test_requests_of_one_connection_are_served_side_by_side(certificate: DevCertificate) -> None:
    both = asyncio.Barrier(2)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await both.wait()
        await reply(send, scope["path"].encode())

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        streams = [peer.request(get("/a")), peer.request(get("/b"))]
        assert [(await peer.reply(stream)).body for stream in streams] == [b"/a", b"/b"]


async def test_the_start_is_held_until_the_first_body(certificate: DevCertificate) -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        await go.wait()
        await send({"type": "http.response.body", "body": b"now"})

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(get())
        await begun.wait()
        await peer.round_trip()
        assert peer.at(stream).status is None
        go.set()
        assert (await peer.reply(stream)).body == b"now"


async def test_a_client_that_asks_first_is_told_to_continue(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(post("/", (b"expect", b"100-continue")), end=False)
        await peer.until(lambda: peer.at(stream).status == 100)
        peer.data(stream, b"body", end=True)
        assert (await peer.reply(stream)).body == b"POST / body"


async def test_trailers_end_a_request_and_are_no_second_one(certificate: DevCertificate) -> None:
    calls: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(await read_body(receive))
        await reply(send, b"done")

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        assert peer.h3
        stream = peer.request(post(), b"body", end=False)
        peer.h3.send_headers(stream, [(b"checksum", b"1")], end_stream=True)
        peer.flush()
        assert (await peer.reply(stream)).body == b"done"
    assert calls == [b"body"]
