"""The HTTP/3 transport for httpx."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aioquic.quic.configuration import QuicConfiguration

from edgeproxy.client.connection import Connection, StreamFailed
from edgeproxy.client.h3 import WRITE_BYTES, Http3
from edgeproxy.client.httpx import AsyncClient, AsyncTransport, Client, Transport
from edgeproxy.wire.ingress import Scope, ingress
from edgeproxy.wire.limits import KIB, Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate
from tests.client.h3_edge import Edge, Probe, echo, read_body, reply, serving, soon
from tests.client.h3_peer import post

BIG = bytes(range(256)) * 4096


def client(edge: Edge) -> AsyncClient:
    return AsyncClient(verify=edge.ca, only=True, base_url=edge.url, timeout=20)


@pytest.mark.parametrize("path", ["/whole", "/stream"])
@pytest.mark.parametrize("body", [b"", b"hello", BIG], ids=["empty", "small", "large"])
async def test_requests_and_responses_arrive_whole(path: str, body: bytes, certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge, client(edge) as http:
        response = await http.post(path, content=body)
    assert (response.status_code, response.http_version) == (200, "HTTP/3")
    assert response.content == b"POST " + path.encode() + b" " + body


async def test_a_body_can_be_streamed_up(certificate: DevCertificate) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for i in range(100):
            yield b"%d," % i * 1000

    async with serving(echo, certificate) as edge, client(edge) as http:
        response = await http.post("/", content=pieces())
    assert response.content == b"POST / " + b"".join([b"%d," % i * 1000 for i in range(100)])


async def test_a_stream_arrives_piece_by_piece(certificate: DevCertificate) -> None:
    turn = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await turn.wait()
            turn.clear()
        await send({"type": "http.response.body", "body": b""})

    got = []
    async with serving(app, certificate) as edge, client(edge) as http, http.stream("GET", "/") as response:
        async for piece in response.aiter_raw():
            got.append(piece)
            turn.set()
    assert got == [b"one", b"two"]


async def test_one_connection_serves_many_requests_at_once(certificate: DevCertificate) -> None:
    all_here = asyncio.Barrier(20)
    addresses = set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.add(scope["client"])
        known = ingress(scope)
        assert known is not None
        await all_here.wait()
        await reply(send, known.protocol.encode())

    async with serving(app, certificate) as edge, client(edge) as http:
        responses = await asyncio.gather(*[http.get("/") for _ in range(20)])
    assert {response.content for response in responses} == {b"h3"}
    assert len(addresses) == 1


async def test_closing_a_response_early_cancels_it_at_the_server(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.flood, certificate) as edge, client(edge) as http:
        async with http.stream("GET", "/") as response:
            async for _ in response.aiter_raw():
                break
        await soon(probe.send_failed)


async def test_cancelling_a_waiting_request_cancels_it_at_the_server(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.wait, certificate) as edge, client(edge) as http:
        request = asyncio.create_task(http.get("/"))
        await soon(probe.started)
        request.cancel()
        await soon(probe.disconnected)


async def test_a_response_that_nobody_reads_stops_the_server(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeproxy.client.h3.STREAM_WINDOW", 32 * KIB)
    probe = Probe()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (probe.flood if scope["path"] == "/" else echo)(scope, receive, send)

    limits = Limits()
    async with serving(app, certificate, limits) as edge, client(edge) as http, http.stream("GET", "/"):
        before = -1
        while probe.sent > before:
            before = probe.sent
            for _ in range(5):
                await http.get("/other")
        assert probe.sent <= 32 * KIB + limits.unsent_bytes


async def test_a_refusal_during_the_upload_is_the_answer(certificate: DevCertificate) -> None:
    async with serving(echo, certificate, Limits(body_bytes=1000)) as edge, client(edge) as http:
        assert (await http.post("/", content=BIG)).status_code == 413


async def test_a_response_that_breaks_off_is_an_error(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await read_body(receive)
        raise RuntimeError

    async with serving(app, certificate) as edge, client(edge) as http:
        with pytest.raises(httpx.ReadError, match="reset"):
            await http.get("/")


async def test_after_a_goaway_the_next_request_takes_a_new_connection(certificate: DevCertificate) -> None:
    limits = Limits()
    addresses = set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        addresses.add(scope["client"])
        await reply(send, b"ok")

    async with serving(app, certificate, limits) as edge, client(edge) as http:
        bystander = await edge.peer()
        async with asyncio.timeout(20):
            while len(addresses) < 3:
                assert (await http.get("/")).content == b"ok"
                await bystander.round_trip()  # meanwhile the answer is acknowledged
                bystander = await edge.peer() if bystander.closed else bystander
                edge.later(limits.keep_alive_s + 1)  # an idle connection is told to go, and closed


async def test_head_has_a_length_and_no_body(certificate: DevCertificate) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, b"12345", 200, (b"content-length", b"5"))

    async with serving(app, certificate) as edge, client(edge) as http:
        response = await http.head("/")
    assert (response.headers["content-length"], response.content) == ("5", b"")


async def test_a_certificate_of_another_authority_is_refused(
    certificate: DevCertificate, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = make_dev_certificate(tmp_path_factory.mktemp("stranger"))
    async with (
        serving(echo, certificate) as edge,
        httpx.AsyncClient(transport=AsyncTransport(verify=stranger.ca, only=True)) as http,
    ):
        with pytest.raises(httpx.ConnectError, match="certificate"):
            await http.get(edge.url)


async def test_nobody_listening_is_a_connect_error() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with httpx.AsyncClient(transport=AsyncTransport(only=True), timeout=20) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"https://127.0.0.1:{port}/")


async def test_a_server_that_is_gone_fails_the_requests_on_its_connection(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.wait, certificate) as edge:
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
        configuration.load_verify_locations(cafile=str(edge.ca))
        connection = await Connection.connect(configuration, ("127.0.0.1", edge.port))
        exchange = connection.request(post(), end=True)
        await soon(probe.started)
        connection.error_received(ConnectionRefusedError())  # as a restarted server's kernel says it
        with pytest.raises(StreamFailed):
            await exchange.head()
        assert not connection.usable


async def test_a_server_that_does_not_answer_is_a_timeout(certificate: DevCertificate) -> None:
    probe = Probe()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        async with httpx.AsyncClient(
            transport=AsyncTransport(only=True), timeout=httpx.Timeout(20, connect=0.01)
        ) as http:
            with pytest.raises(httpx.ConnectTimeout):
                await http.get(f"https://127.0.0.1:{mute.getsockname()[1]}/")
    async with serving(probe.wait, certificate) as edge, client(edge) as http:
        with pytest.raises(httpx.ReadTimeout):
            await http.get("/", timeout=httpx.Timeout(20, read=0.01))
        await soon(probe.disconnected)


async def test_plain_http_is_refused() -> None:
    async with httpx.AsyncClient(transport=AsyncTransport(only=True)) as http:
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("http://127.0.0.1/")


@pytest.mark.parametrize("kind", [Client, AsyncClient, Transport, AsyncTransport])
@pytest.mark.parametrize("only", [True, False])
def test_a_file_of_authorities_that_cannot_be_used_is_named_at_once(kind: Any, only: bool, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("none.pem", "empty.pem"):
        with pytest.raises(ValueError, match=name):
            kind(verify=tmp_path / name, only=only)


async def test_the_time_for_a_write_is_for_each_piece_of_a_body() -> None:
    sizes: list[int] = []
    timed: list[str] = []

    class Slow:
        stopped = False

        async def write(self, data: bytes) -> None:
            sizes.append(len(data))

        def end(self) -> None:
            sizes.append(0)

    @asynccontextmanager
    async def timeouts(name: str, error: object) -> AsyncIterator[None]:
        timed.append(name)
        yield

    request = httpx.Request("POST", "https://h/", content=bytes(3 * WRITE_BYTES + 1))
    exchange: Any = Slow()
    limits: Any = timeouts
    await Http3(httpx, True)._send_body(request, exchange, limits)
    assert sizes == [WRITE_BYTES, WRITE_BYTES, WRITE_BYTES, 1, 0]
    assert timed == ["write"] * 4
