"""Who gets a QUIC connection, and what becomes of datagrams that belong to none."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode

from edgeproxy.client.any_quic import AnyQuic
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.quic import Endpoint
from edgeproxy.wire.quic_connection import Connection, Home
from edgeproxy.wire.quic_servers import quic_server
from edgeproxy.wire.tickets import Tickets
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import echo, serving
from tests.client.h3_peer import get

REFUSED = f"0x{QuicErrorCode.CONNECTION_REFUSED:x}"


@pytest.mark.parametrize("limits", [Limits(connections=2), Limits(connections_per_address=2)], ids=["all", "address"])
async def test_connections_beyond_the_limit_are_refused_at_once(limits: Limits, certificate: DevCertificate) -> None:
    async with serving(echo, certificate, limits) as edge:
        first, second = await edge.peer(), await edge.peer()
        with pytest.raises(ConnectionError, match=REFUSED):
            await edge.peer()
        for peer in (first, second):
            assert (await peer.reply(peer.request(get()))).status == 200


async def test_half_open_connections_make_later_ones_prove_their_address(certificate: DevCertificate) -> None:
    """Below a quarter of the limit no Retry; from there each newcomer pays a round trip, and is served."""
    async with serving(echo, certificate, Limits(half_open=8)) as edge:
        for _ in range(2):
            (await edge.peer(wait=False)).deaf = True
        honest = await edge.peer()
        assert (await honest.reply(honest.request(get()))).status == 200
        assert honest.retried
        edge.later(1000)
        at_ease = await edge.peer()
        assert not at_ease.retried


async def test_a_handshake_that_takes_too_long_loses_its_place(certificate: DevCertificate) -> None:
    limits = Limits()
    async with serving(echo, certificate, limits) as edge:
        (await edge.peer(wait=False)).deaf = True
        honest = await edge.peer()
        await honest.reply(honest.request(get()))
        assert edge.listener.connections == 2
        edge.later(limits.handshake_s + 1)
        await honest.round_trip()
        assert edge.listener.connections == 1


@pytest.mark.parametrize("first", [0x40, 0xC0, 0x00, 0xE0], ids=["short", "initial", "zero", "handshake"])
async def test_noise_is_dropped_without_a_trace(first: int, certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for size in (0, 1, 20, 1200, 1400):
                sock.sendto(bytes([first])[:size] + os.urandom(max(0, size - 1)), ("127.0.0.1", edge.port))
            # Well-formed Initial packets that cannot be decrypted: version 1, ids of 8 octets, no token, 1100 octets.
            header = b"\xc3\x00\x00\x00\x01\x08" + os.urandom(8) + b"\x08" + os.urandom(8) + b"\x00" + b"\x44\x4c"
            for _ in range(5):
                sock.sendto(header + os.urandom(1200), ("127.0.0.1", edge.port))
        peer = await edge.peer()
        assert (await peer.reply(peer.request(get()))).status == 200
        assert edge.listener.connections == 1


async def test_an_unknown_version_is_answered_with_those_we_speak(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto(
                b"\xc0\x1a\x2a\x3a\x4a\x08" + b"d" * 8 + b"\x08" + b"s" * 8 + bytes(1200), ("127.0.0.1", edge.port)
            )
            peer = await edge.peer()
            await peer.round_trip()
            answer = sock.recv(2000)
    assert answer[1:5] == bytes(4)
    assert b"\x00\x00\x00\x01" in answer[5:]


async def test_a_client_that_speaks_no_h3_is_turned_away(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer(wait=False, alpn_protocols=["hq-interop"])
        assert (await peer.closing()).error_code == QuicErrorCode.CRYPTO_ERROR + 120


async def test_handshakes_have_one_share_of_the_loop_together_and_are_not_hoarded(certificate: DevCertificate) -> None:
    limits = Limits(handshakes_per_turn=2, datagrams_waiting=6)
    server = quic_server("aioquic", limits, certificate.certificate, certificate.key)
    begun: list[int] = []
    turn = 0

    def make(quic: AnyQuic, home: Home, host: str, now: float) -> Connection:
        begun.append(turn)
        return Connection(quic, home, host, now)

    endpoint = Endpoint(server, limits, make, Tickets(1))
    for _ in range(20):
        client = QuicConnection(configuration=QuicConfiguration(is_client=True, alpn_protocols=["h3"]))
        client.connect(("h", 1), now=0.0)
        endpoint.datagram_received(client.datagrams_to_send(0.0)[0][0], ("127.0.0.1", 1))
    for _ in range(10):
        turn += 1
        await asyncio.sleep(0)
    assert begun == [0, 0, 1, 1, 2, 2, 3, 3]  # what did not fit is lost, as in the network
    for connection in list(endpoint.connections):
        endpoint.remove(connection)
