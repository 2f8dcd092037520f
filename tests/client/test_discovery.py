"""HTTP/3 where an origin offers it, TCP wherever that does not work, and no request twice that must not be."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from aioquic.h3.connection import ErrorCode

from edgeproxy.client import connection, transport
from edgeproxy.client.connection import StreamFailed
from edgeproxy.client.httpx import AsyncClient
from edgeproxy.client.transport import may_repeat
from edgeproxy.config import Address
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tls import DevCertificate
from tests.client.offering import Origin, offering


def client(origin: Origin) -> AsyncClient:
    return AsyncClient(verify=origin.ca, base_url=origin.url, timeout=20)


async def over(http: AsyncClient, method: str = "POST") -> str:
    """The protocol over which a request was answered."""
    response = await http.request(method, "/", content=b"{}" if method == "POST" else None)
    return response.text


async def until_http3(http: AsyncClient) -> None:
    async with asyncio.timeout(20):
        while await over(http, "GET") != "h3":
            pass


async def test_the_first_request_goes_over_tcp_and_later_ones_over_http3(certificate: DevCertificate) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        assert await over(http) == "h1"
        await until_http3(http)
        assert [await over(http) for _ in range(3)] == ["h3"] * 3


async def test_what_is_cleared_is_not_used_any_more(certificate: DevCertificate) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        await until_http3(http)
        origin.offer = b"clear"
        assert await over(http) == "h3", "this is where it is said"
        assert [await over(http) for _ in range(3)] == ["h1"] * 3


async def test_an_offer_that_has_expired_is_not_used(certificate: DevCertificate) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        origin.offer = b'h3=":%d"; ma=0' % origin.relay.port
        assert [await over(http) for _ in range(3)] == ["h1"] * 3
        assert origin.relay.counts.passed == 0, "nobody tries it"


@pytest.mark.parametrize("start", [0.0, 0.05])
async def test_udp_that_nobody_answers_is_given_up(
    start: float, certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HEAD_START_S", start)
    monkeypatch.setattr(transport, "ATTEMPT_S", 0.1)
    async with offering(certificate) as origin, client(origin) as http:
        origin.relay.dark = True
        assert await over(http) == "h1"
        async with asyncio.timeout(20):
            while http_core(http)._attempts:
                assert await over(http) == "h1"
        assert origin.relay.counts.lost > 0
        for _ in range(3):
            assert await over(http) == "h1"
            assert not http_core(http)._attempts, "it is left alone"


async def test_a_port_that_nobody_listens_on_is_given_up(certificate: DevCertificate) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    async with offering(certificate) as origin, client(origin) as http:
        origin.offer = b'h3=":%d"' % port
        assert [await over(http) for _ in range(4)] == ["h1"] * 4


async def test_a_server_of_another_protocol_is_given_up(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgeproxy.wire.quic_servers.H3_ALPN", ["hq-interop"])
    async with offering(certificate) as origin, client(origin) as http:
        assert await over(http) == "h1"
        async with asyncio.timeout(20):
            while http_core(http)._attempts:
                assert await over(http) == "h1"
        assert origin.relay.counts.passed > 0
        assert await over(http) == "h1"


async def test_a_listener_that_drains_in_between_loses_no_request(certificate: DevCertificate) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        origin.offer = b'h3=":%d"; ma=300' % origin.quic.port  # the relay knows one client at a time
        await until_http3(http)
        held = asyncio.create_task(http.get("/hold"))
        await origin.held.wait()
        draining = asyncio.create_task(origin.quic.drain(20))
        async with asyncio.timeout(20):
            while await over(http) == "h3":
                pass  # GOAWAY is on its way
        before = origin.calls["POST"]
        assert [await over(http) for _ in range(5)] == ["h1"] * 5
        assert origin.calls["POST"] - before == 5
        origin.release.set()
        assert (await held).text == "h3", "what was in progress ends where it began"
        await draining


async def test_a_listener_that_comes_back_is_used_again(certificate: DevCertificate) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        await until_http3(http)
        await origin.quic.drain(0)
        origin.offer = b"clear"
        async with asyncio.timeout(20):
            while await over(http, "GET") != "h1":
                pass
        origin.quic = QuicListener(
            origin.app, Limits(), certificate=certificate.certificate, key=certificate.key, state={}
        )
        await origin.quic.start(Address("127.0.0.1", 0))
        origin.offer = b'h3=":%d"; ma=300' % origin.quic.port
        await until_http3(http)


async def test_udp_that_goes_dark_fails_a_request_that_may_not_be_repeated_and_no_other(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOST_S", 0.2)
    async with offering(certificate) as origin, client(origin) as http:
        await until_http3(http)
        origin.relay.dark = True
        post = asyncio.create_task(over(http))
        get = asyncio.create_task(over(http, "GET"))
        assert await get == "h1"
        with pytest.raises(httpx.ReadError, match="nothing heard"):
            await post
        assert origin.calls["POST"] == 0
        assert await over(http) == "h1", "the next one does not try there"


async def test_a_connection_that_was_quiet_is_asked_before_a_request_is_given_to_it(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "HEAD_START_S", 0.1)
    async with offering(certificate) as origin, client(origin) as http:
        await until_http3(http)
        monkeypatch.setattr(connection, "QUIET_S", -1.0)
        origin.relay.dark = True
        assert await over(http) == "h1"
        assert origin.calls["POST"] == 1


async def test_without_tcp_what_comes_late_over_udp_is_taken(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        await until_http3(http)
        monkeypatch.setattr(connection, "QUIET_S", -1.0)
        monkeypatch.setattr(transport, "HEAD_START_S", 0.0)
        await origin.tcp.drain(0)
        assert await over(http) == "h3"


async def test_an_alternative_that_does_not_answer_for_the_origin_is_left(certificate: DevCertificate) -> None:
    async with offering(certificate) as origin, client(origin) as http:
        await until_http3(http)
        origin.statuses["h3"] = 421
        assert [await over(http) for _ in range(2)] == ["h1"] * 2
        assert origin.calls["POST"] == 3, "the second knew better"


async def test_plain_http_goes_over_tcp() -> None:
    async with AsyncClient(verify=False) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("http://127.0.0.1:1/")


@pytest.mark.parametrize(
    ("method", "code", "streamed", "expected"),
    [
        ("GET", None, False, True),
        ("POST", None, False, False),
        ("POST", ErrorCode.H3_INTERNAL_ERROR, False, False),
        ("POST", ErrorCode.H3_REQUEST_REJECTED, False, True),
        ("POST", ErrorCode.H3_REQUEST_REJECTED, True, False),
        ("PUT", None, True, False),
    ],
)
def test_what_may_be_repeated(method: str, code: int | None, streamed: bool, expected: bool) -> None:
    request = httpx.Request(method, "https://a.example/", content=iter([b"x"]) if streamed else b"x")
    assert may_repeat(httpx, request, StreamFailed("cut", code)) is expected


def http_core(http: AsyncClient) -> transport.Discovering:
    core = http._transport._transport  # type: ignore[attr-defined]
    assert isinstance(core, transport.Discovering)
    return core
