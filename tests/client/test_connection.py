"""When a client's connection is given up, and what becomes of the requests on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aioquic.quic.configuration import QuicConfiguration

from edgeproxy.client import connection as module
from edgeproxy.client.altsvc import Endpoint
from edgeproxy.client.connection import LOST_S, Connection, Exchange, StreamFailed
from edgeproxy.client.httpx import AsyncClient
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, Probe, echo, serving, soon
from tests.client.h3_peer import get, post
from tests.client.offering import offering
from tests.client.test_discovery import http_core, over, until_http3
from tests.client.test_peer_reset import reset


class Clock:
    """As `time` to the connection; stands still until the test turns it."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now


class Nowhere:
    """A transport whose datagrams nobody gets."""

    def __init__(self) -> None:
        self.sent = asyncio.Event()

    def sendto(self, data: bytes) -> None:
        self.sent.set()

    def close(self) -> None:
        pass


@asynccontextmanager
async def connected(edge: Edge) -> AsyncIterator[Connection]:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
    configuration.load_verify_locations(cafile=str(edge.ca))
    connection = await Connection.connect(configuration, ("127.0.0.1", edge.port))
    try:
        yield connection
    finally:
        connection.close()


async def settled(connection: Connection) -> None:
    """The peer has acknowledged everything."""
    while connection.quic.awaits_acknowledgement:
        assert await connection.ping()


def lead_nowhere(connection: Connection) -> Nowhere:
    """From here on nothing arrives at the peer."""
    transport, nowhere = connection._transport, Nowhere()
    assert transport is not None
    transport.close()
    connection._transport = nowhere  # type: ignore[assignment]
    return nowhere


def cut_off(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Nothing arrives any more, and the test turns the clock."""
    monkeypatch.setattr(module, "time", clock := Clock(asyncio.get_running_loop().time()))
    lead_nowhere(connection)
    return clock


def shown_reset(connection: Connection) -> None:
    connection.datagram_received(reset(connection.quic._peer_cid.stateless_reset_token), None)
    connection._transmit()


async def failure_of(exchange: Exchange) -> StreamFailed:
    with pytest.raises(StreamFailed) as caught:
        await exchange.head()
    return caught.value


@pytest.mark.parametrize("idle_s", [0.0, 10.0, 40.0])
async def test_a_silent_peer_is_given_up_in_time_however_often_it_is_probed(
    idle_s: float, certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(echo, certificate) as edge, connected(edge) as connection:
        await settled(connection)
        clock = cut_off(connection, monkeypatch)
        clock.now += idle_s
        began = clock.now
        exchange = connection.request(post(), end=True)
        connection._transmit()
        probes = 0
        while not connection.quic.ended:
            assert connection._timer is not None
            clock.now = max(clock.now, connection._timer.when())
            connection._fired()
            probes += 1
        assert probes > 3
        assert clock.now - began == pytest.approx(LOST_S, abs=0.1)
        assert "nothing heard" in str(await failure_of(exchange))


async def test_who_waits_for_an_answer_asks_for_a_sign_of_life(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was killed says so only to who sends something."""
    probe = Probe()
    async with serving(probe.hold, certificate) as edge, connected(edge) as connection:
        connection.request(get(), end=True)
        await soon(probe.started)
        await settled(connection)
        clock = cut_off(connection, monkeypatch)
        while not connection.quic.awaits_acknowledgement:
            assert connection._timer is not None
            clock.now = max(clock.now, connection._timer.when())
            connection._fired()
        assert clock.now - connection._heard == pytest.approx(module.ASK_S, abs=0.1)


async def test_what_cannot_be_decrypted_is_no_sign_of_life(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(echo, certificate) as edge, connected(edge) as connection:
        await settled(connection)
        clock = cut_off(connection, monkeypatch)
        clock.now += module.QUIET_S + 1
        connection.datagram_received(reset(bytes(16)), None)
        assert connection.quiet


async def test_a_reset_fails_all_requests_and_tells_which_were_not_looked_at(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hold, certificate) as edge, connected(edge) as connection:
        seen = connection.request(get(), end=True)
        await soon(probe.started)
        await settled(connection)
        unseen = connection.request(post(), end=True)
        connection._transmit()
        shown_reset(connection)
        assert [(await failure_of(exchange)).rejected for exchange in (seen, unseen)] == [False, True]
        assert "stateless reset" in str(await failure_of(seen))
        assert not connection.usable
        assert not connection.lost, "there is a new one in its place"


async def test_a_request_that_was_sent_twice_may_have_been_looked_at(
    certificate: DevCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(echo, certificate) as edge, connected(edge) as connection:
        await settled(connection)
        clock = cut_off(connection, monkeypatch)
        exchange = connection.request(post(), end=True)
        connection._transmit()
        assert connection._timer is not None
        clock.now = connection._timer.when()
        connection._fired()
        shown_reset(connection)
        assert not (await failure_of(exchange)).rejected


async def test_where_nobody_listens_any_more_a_request_was_not_looked_at(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge, connected(edge) as connection:
        await settled(connection)
        exchange = connection.request(post(), end=True)
        connection._transmit()
        connection.error_received(ConnectionRefusedError())
        failure = await failure_of(exchange)
        assert failure.rejected
        assert "nobody listens" in str(failure)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_after_a_reset_a_request_is_answered_over_another_connection(
    method: str, certificate: DevCertificate
) -> None:
    async with offering(certificate) as origin, AsyncClient(verify=origin.ca, base_url=origin.url, timeout=20) as http:
        await until_http3(http)
        (connection,) = http_core(http)._http3._connections.values()
        await settled(connection)
        nowhere, before = lead_nowhere(connection), origin.calls[method]
        asking = asyncio.create_task(over(http, method))
        await soon(nowhere.sent)
        shown_reset(connection)
        assert await asking == "h1"
        assert origin.calls[method] == before + 1
        await until_http3(http)  # the endpoint does not count as broken


async def test_with_nothing_but_http3_a_reset_leads_to_a_new_connection(certificate: DevCertificate) -> None:
    addresses = set[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        addresses.add(scope["client"])
        await echo(scope, receive, send)

    async with (
        serving(app, certificate) as edge,
        AsyncClient(verify=edge.ca, only=True, base_url=edge.url, timeout=20) as http,
    ):
        await http.get("/")
        core: Any = http._transport._transport  # type: ignore[attr-defined]
        connection: Connection = core._http3._connections[Endpoint("127.0.0.1", edge.port)]
        await settled(connection)
        nowhere = lead_nowhere(connection)
        asking = asyncio.create_task(http.post("/", content=b"x"))
        await soon(nowhere.sent)
        shown_reset(connection)
        assert (await asking).content == b"POST / x"
        assert len(addresses) == 2


async def test_a_body_that_is_used_up_is_not_sent_again(certificate: DevCertificate) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{}"

    async with offering(certificate) as origin, AsyncClient(verify=origin.ca, base_url=origin.url, timeout=20) as http:
        await until_http3(http)
        (connection,) = http_core(http)._http3._connections.values()
        await settled(connection)
        nowhere = lead_nowhere(connection)
        asking = asyncio.create_task(http.post("/", content=pieces()))
        await soon(nowhere.sent)
        shown_reset(connection)
        with pytest.raises(httpx.ReadError, match="stateless reset"):
            await asking
