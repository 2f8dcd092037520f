"""A process that was killed leaves clients behind; the next one tells them (RFC 9000 sections 10.3 and 21.11)."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pycurl
import pytest
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE

from edgeproxy.config import Address
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.wire import h3_listener
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.resets import LONGEST, SECRET_BYTES, SHORTEST, TOKEN_BYTES, Resets, kept_secret
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, echo, soon
from tests.client.h3_peer import Peer, get

SECRET = b"s" * SECRET_BYTES
CID = b"12345678"
PLACE = ("127.0.0.1", 443)


def resets(secret: bytes = SECRET, place: tuple[Any, ...] = PLACE, limits: Limits | None = None) -> Resets:
    return Resets(secret, place, limits or Limits(), 0.0)


def short(size: int, cid: bytes = CID) -> bytes:
    """What looks like a packet with a short header."""
    return (b"\x40" + cid + os.urandom(max(0, size - 9)))[:size]


class House:
    """Processes of one deployment, one after the other, and their clients."""

    def __init__(self, certificate: DevCertificate) -> None:
        self._certificate = certificate
        self.listeners: list[QuicListener] = []
        self.counts: list[QuicCounts] = []
        self.peers: list[Peer] = []

    async def generation(
        self, where: Address | socket.socket, app: Any = echo, secret: bytes | None = SECRET
    ) -> QuicListener:
        own, counts = self._certificate, QuicCounts()
        listener = QuicListener(
            app, Limits(), certificate=own.certificate, key=own.key, state={}, reset_secret=secret, counts=counts
        )
        self.listeners.append(listener)
        self.counts.append(counts)
        await listener.start(where)
        return listener

    async def peer(self, port: int, host: str = "127.0.0.1") -> Peer:
        peer = await Peer.open(port, self._certificate.ca, host=host)
        self.peers.append(peer)
        return peer


@pytest.fixture
async def house(certificate: DevCertificate) -> AsyncIterator[House]:
    home = House(certificate)
    yield home
    for peer in home.peers:
        peer.close()
    for listener in home.listeners:
        await listener.drain(0)


async def crash(listener: QuicListener) -> Address:
    """As SIGKILL leaves it: the socket is closed, and nobody was told anything. Returns where it was."""
    where = Address("127.0.0.1", listener.port)
    endpoint = listener._endpoint
    assert endpoint is not None
    assert endpoint._transport is not None
    endpoint._transport.abort()
    while endpoint.alive or endpoint._transport is not None:  # noqa: ASYNC110 - a state, not an event
        await asyncio.sleep(0)
    return where


async def answer_to_next_datagram(peer: Peer) -> bytes:
    """What comes back when the client, which knows of nothing, goes on."""
    peer.lost = []
    peer.quic.send_ping(99)
    peer.flush()
    lost = peer.lost
    async with asyncio.timeout(20):
        while not lost:  # noqa: ASYNC110 - a datagram, which no event tells of
            await asyncio.sleep(0.001)
    return lost[0]


async def test_after_a_crash_the_next_process_ends_old_connections_with_the_token_they_were_given(house: House) -> None:
    """Sections 10.3 and 18.2: the token of the handshake's transport parameters."""
    first = await house.generation(Address("127.0.0.1", 0))
    peer = await house.peer(first.port)
    await peer.round_trip()
    await house.generation(await crash(first))
    reset = await answer_to_next_datagram(peer)
    assert reset[-TOKEN_BYTES:] == peer.quic._peer_cid.stateless_reset_token
    assert reset[0] & 0xC0 == 0x40
    assert house.counts[1].resets >= 1  # more where the client has probed meanwhile
    newcomer = await house.peer(house.listeners[1].port)
    assert (await newcomer.reply(newcomer.request(get()))).status == 200


def fetched(handle: pycurl.Curl, url: str, ca: Path) -> bytes:
    body = io.BytesIO()
    handle.setopt(pycurl.URL, url)
    handle.setopt(pycurl.HTTP_VERSION, 31)  # CURL_HTTP_VERSION_3ONLY, for which this library has no name
    handle.setopt(pycurl.CAINFO, str(ca))
    handle.setopt(pycurl.TIMEOUT, 30)
    handle.setopt(pycurl.WRITEDATA, body)
    handle.perform()
    return body.getvalue()


async def test_curl_comes_anew_instead_of_waiting_in_vain(house: House, certificate: DevCertificate) -> None:
    """It has nothing of ours (ngtcp2). Without a reset it says 28, operation timed out, after whatever time it has."""
    first = await house.generation(Address("127.0.0.1", 0))
    url, curl = f"https://localhost:{first.port}/", pycurl.Curl()
    assert await asyncio.to_thread(fetched, curl, url, certificate.ca) == b"GET / "
    await house.generation(await crash(first))
    assert await asyncio.to_thread(fetched, curl, url, certificate.ca) == b"GET / "
    assert house.counts[1].resets >= 1
    assert house.counts[1].handshakes == {"completed": 1}
    curl.close()


async def test_ids_that_are_given_out_later_have_tokens_as_good(house: House) -> None:
    """Section 19.15: NEW_CONNECTION_ID, and again where one is retired."""
    first = await house.generation(Address("127.0.0.1", 0))
    peer = await house.peer(first.port)
    for _ in range(10):
        await peer.until(lambda: bool(peer.quic._peer_cid_available))
        peer.quic.change_connection_id()
        for _ in range(2):
            await peer.round_trip()
    await house.generation(await crash(first))
    assert (await answer_to_next_datagram(peer))[-TOKEN_BYTES:] == peer.quic._peer_cid.stateless_reset_token


async def test_a_process_with_another_secret_cannot_end_connections(house: House) -> None:
    first = await house.generation(Address("127.0.0.1", 0), secret=None)
    peer = await house.peer(first.port)
    await peer.round_trip()
    await house.generation(await crash(first), secret=None)
    assert (await answer_to_next_datagram(peer))[-TOKEN_BYTES:] != peer.quic._peer_cid.stateless_reset_token


async def test_who_has_a_connection_gets_no_reset_and_who_lost_it_does(house: House) -> None:
    listener = await house.generation(Address("127.0.0.1", 0))
    peer = await house.peer(listener.port)
    assert (await peer.reply(peer.request(get()))).status == 200
    peer.close()
    async with asyncio.timeout(20):
        while listener.connections:  # noqa: ASYNC110 - a counter
            await asyncio.sleep(0.001)
    assert house.counts[0].resets == 0


@pytest.mark.skipif(sys.platform != "linux", reason="processes find each other in Linux's abstract namespace")
async def test_an_elder_and_the_next_process_never_end_each_others_connections(house: House) -> None:
    """Both have the secret. Of what is unknown to both, one says so: the one that takes newcomers."""
    probe = Probe()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as shared, socket.socket(type=socket.SOCK_DGRAM) as stranger:
        shared.bind(("127.0.0.1", 0))
        stranger.setblocking(False)
        port, loop = shared.getsockname()[1], asyncio.get_running_loop()

        async def asked() -> bytes:
            stranger.sendto(short(60), ("127.0.0.1", port))
            async with asyncio.timeout(20):
                return await loop.sock_recv(stranger, 2000)

        elder = await house.generation(socket.socket(fileno=os.dup(shared.fileno())), probe.hold)
        await house.generation(socket.socket(fileno=os.dup(shared.fileno())))
        early = await house.peer(port)
        stream = early.request(get())
        await soon(probe.started)
        token = (await asked())[-TOKEN_BYTES:]
        assert [counts.resets for counts in house.counts] == [1, 0]
        drained = asyncio.create_task(elder.drain(20))
        await asyncio.sleep(0)
        late = await house.peer(port)
        assert (await late.reply(late.request(get()))).status == 200
        assert (await asked())[-TOKEN_BYTES:] == token
        assert [counts.resets for counts in house.counts] == [1, 1]
        for peer in (early, late):
            await peer.round_trip()
            assert peer.closed is None
        probe.go.set()
        assert (await early.reply(stream)).body == b"held"
        await drained
        assert (await late.reply(late.request(get()))).status == 200
        assert late.closed is None


async def test_where_others_may_read_the_same_socket_nobody_is_reset(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inherited socket on a system on which processes do not find each other."""
    monkeypatch.setattr(h3_listener, "SUPPORTED", False)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    await house.generation(sock)
    with socket.socket(type=socket.SOCK_DGRAM) as stranger:
        stranger.sendto(short(60), ("127.0.0.1", port))
        peer = await house.peer(port)
        assert (await peer.reply(peer.request(get()))).status == 200
    assert house.counts[0].resets == 0


@pytest.mark.parametrize("size", range(1, SHORTEST + 1))
def test_what_may_be_a_reset_itself_or_is_too_short_for_one_is_not_answered(size: int) -> None:
    assert resets().answer(short(size), len(CID), 0.0) is None


@pytest.mark.parametrize("size", [22, 23, 42, 43, 44, 50, 79, 80, 81, 200, SMALLEST_MAX_DATAGRAM_SIZE, 65_507])
def test_a_reset_is_shorter_than_its_cause_and_looks_like_any_packet(size: int) -> None:
    """Section 10.3: one octet shorter where that is needed; no two alike but for the token."""
    of_it = resets()
    found = [of_it.answer(short(size), len(CID), 0.0) for _ in range(50)]
    for reset in found:
        assert reset is not None
        assert SHORTEST <= len(reset) < size
        assert len(reset) == size - 1 or 42 <= len(reset) <= LONGEST
        assert reset[0] & 0xC0 == 0x40
        assert reset[-TOKEN_BYTES:] == of_it.token(CID)
    assert len({reset[:-TOKEN_BYTES] for reset in found if reset}) == 50


@pytest.mark.parametrize("first", [0x00, 0x3F, 0x80, 0xC0, 0xFF])
def test_long_headers_and_what_is_no_quic_are_not_answered(first: int) -> None:
    assert resets().answer(bytes([first]) + short(100)[1:], len(CID), 0.0) is None


def test_two_endpoints_that_answer_each_other_fall_silent() -> None:
    """Section 10.3.3."""
    sides = resets(b"a" * 32), resets(b"b" * 32)
    said: bytes | None = short(1200)
    for number in range(100):
        assert said is not None
        said = sides[number % 2].answer(said, len(CID), 0.0)
        if said is None:
            return
    raise AssertionError("they still talk")


def test_resets_are_bounded_in_time() -> None:
    of_it = resets(limits=Limits(stateless_resets_burst=3, stateless_resets_per_s=2.0))
    assert [of_it.answer(short(60), len(CID), 0.0) is None for _ in range(5)] == [False] * 3 + [True] * 2
    assert [of_it.answer(short(60), len(CID), 0.5) is None for _ in range(2)] == [False, True]


def test_proxies_that_share_a_secret_do_not_share_tokens() -> None:
    """Section 21.11: an oracle for one's connections must not be had from another."""
    tokens = {resets(place=place).token(CID) for place in (PLACE, ("127.0.0.1", 444), ("10.0.0.1", 443))}
    assert len(tokens) == 3
    assert resets().token(CID) == resets().token(CID) != resets().token(b"87654321")
    assert resets(place=("::1", 443, 0, 0)).token(CID) == resets(place=("::1", 443, 7, 1)).token(CID)


def test_the_secret_outlives_the_process_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "state" / "reset.key"
    first = kept_secret(file)
    assert kept_secret(file) == first
    assert len(first) == SECRET_BYTES
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["reset.key"]


def test_a_secret_that_cannot_be_kept_is_named_and_one_is_made_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torn, in_the_way = tmp_path / "torn", tmp_path / "file"
    torn.write_bytes(secrets.token_bytes(5))
    in_the_way.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        found = {kept_secret(torn), kept_secret(torn), kept_secret(in_the_way / "reset.key")}
    assert [len(secret) for secret in found] == [SECRET_BYTES] * 3
    assert "remove it" in caplog.text
    assert "--state" in caplog.text
