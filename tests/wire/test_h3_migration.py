"""A connection is known by its ids, whatever addresses and ids it goes through (RFC 9000 sections 5.1 and 9)."""

from __future__ import annotations

import os
import random

from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, echo, serving
from tests.client.h3_peer import Peer, get, post
from tests.wire.test_h3_network import Upstream, digest, relayed
from tests.wire.udp_relay import Faults

ACTIVE_IDS = 8
"""That a peer may hold at once, as aioquic says in its transport parameters."""


def routes(edge: Edge) -> set[bytes]:
    assert edge.listener._endpoint is not None
    return set(edge.listener._endpoint._routes)


async def another_id(peer: Peer) -> bytes:
    """The one that the client used until now, and that both sides have forgotten since."""
    await peer.until(lambda: bool(peer.quic._peer_cid_available))
    before = peer.quic._peer_cid.cid
    peer.quic.change_connection_id()
    for _ in range(2):  # the server learns that the old one is retired, and gives a new one
        await peer.round_trip()
    assert peer.quic._peer_cid.cid != before
    return before


async def test_an_upload_goes_on_across_new_addresses_and_new_ids(certificate: DevCertificate) -> None:
    upstream, body = Upstream(), random.Random(1).randbytes(160_000)
    async with serving(upstream, certificate) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        stream = peer.request(post("/"), end=False)
        for start in range(0, len(body), 20_000):
            peer.data(stream, body[start : start + 20_000], end=start + 20_000 >= len(body))
            if start % 40_000:
                await relay.rebind()
            else:
                await another_id(peer)
        assert digest((await peer.reply(stream)).body) == digest(body)
        assert upstream.calls == {"/": 1}
        assert edge.listener.connections == 1


async def test_ids_that_are_retired_are_forgotten_and_replaced(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        for _ in range(3 * ACTIVE_IDS):
            old = await another_id(peer)
            assert old not in routes(edge)
        assert len(routes(edge)) <= ACTIVE_IDS + 2  # and those of the handshake
        assert (await peer.reply(peer.request(get()))).status == 200
        peer.close()
        await edge.listener.drain(20)
        assert not routes(edge)


async def test_what_comes_for_a_retired_id_is_nobodys(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        old = await another_id(peer)
        assert peer._transport is not None
        peer._transport.sendto(b"\x40" + old + os.urandom(60))
        assert (await peer.reply(peer.request(get()))).status == 200
        assert edge.listener.connections == 1
