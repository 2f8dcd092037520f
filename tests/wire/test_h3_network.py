"""HTTP/3 over networks as they are: whatever happens to datagrams, bodies are whole, requests are served once, and
nothing is left behind."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, Probe, read_body, serving, soon
from tests.client.h3_peer import Peer, get, post
from tests.wire.udp_relay import Faults, UdpRelay

REQUESTS, BODY = 4, 20_000


@dataclass
class Upstream:
    """Answers with the body it got, and counts who asked, by path."""

    calls: Counter[str] = field(default_factory=Counter)
    clients: list[tuple[str, int]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls[scope["path"]] += 1
        self.clients.append(scope["client"])
        body = await read_body(receive)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for start in range(0, len(body), 5000):
            await send({"type": "http.response.body", "body": body[start : start + 5000], "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def relayed(edge: Edge, seed: int, faults: Faults) -> AsyncIterator[tuple[UdpRelay, Peer]]:
    relay = UdpRelay(edge.port, seed, faults)
    await relay.start()
    peer = None
    try:
        peer = await Peer.open(relay.port, edge.ca)
        yield relay, peer
    finally:
        if peer is not None:
            peer.close()
        relay.close()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


FAULTS = {
    "loss": Faults(lose=0.05),
    "reorder": Faults(swap=0.2),
    "duplicate": Faults(repeat=0.3),
    "corrupt": Faults(corrupt=0.05),
    "all": Faults(lose=0.02, swap=0.1, repeat=0.1, corrupt=0.02),
}


async def exchange_all(edge: Edge, upstream: Upstream, seed: int, faults: Faults) -> UdpRelay:
    rng = random.Random(seed)
    bodies = {f"/{number}": rng.randbytes(BODY) for number in range(REQUESTS)}
    async with relayed(edge, seed, faults) as (relay, peer):
        streams = {path: peer.request(post(path), body) for path, body in bodies.items()}
        for path, stream in streams.items():
            reply = await peer.reply(stream)
            assert (reply.ended, reply.reset, peer.closed) == (True, None, None)
            assert digest(reply.body) == digest(bodies[path])
        assert upstream.calls == Counter(dict.fromkeys(bodies, 1))
    return relay


async def assert_nothing_is_left(edge: Edge) -> None:
    edge.later(1000)
    async with asyncio.timeout(20):
        await edge.listener.drain(20)
    assert edge.listener.connections == 0
    assert edge.listener._service is not None
    assert not edge.listener._service.tasks


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("name", FAULTS)
async def test_bodies_are_whole_and_served_once(name: str, seed: int, certificate: DevCertificate) -> None:
    upstream = Upstream()
    async with serving(upstream, certificate) as edge:
        relay = await exchange_all(edge, upstream, seed, FAULTS[name])
        counts = relay.counts
        assert counts.lost + counts.swapped + counts.repeated + counts.corrupted > 0, "the network was too kind"
        await assert_nothing_is_left(edge)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
async def test_heavy_weather(seed: int, certificate: DevCertificate) -> None:
    upstream = Upstream()
    async with serving(upstream, certificate) as edge:
        await exchange_all(edge, upstream, seed, Faults(lose=0.15, swap=0.2, repeat=0.2, corrupt=0.1))
        await assert_nothing_is_left(edge)


async def test_a_client_whose_nat_gives_it_a_new_port_goes_on(certificate: DevCertificate) -> None:
    """RFC 9000 section 9: the connection is known by its id; applications see where the client is now."""
    upstream = Upstream()
    async with serving(upstream, certificate) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        assert (await peer.reply(peer.request(post("/before"), b"a"))).body == b"a"
        running = peer.request(post("/during"), b"b", end=False)
        await peer.round_trip()
        await relay.rebind()
        peer.data(running, b"c", end=True)
        assert (await peer.reply(running)).body == b"bc"
        assert (await peer.reply(peer.request(post("/after"), b"d"))).body == b"d"
        assert edge.listener.connections == 1, "no second handshake"
    before, during, after = upstream.clients
    assert before == during
    assert (before[0], before[1] != after[1]) == (after[0], True)


async def test_a_network_that_swallows_everything_ends_the_request_and_then_comes_back(
    certificate: DevCertificate,
) -> None:
    probe = Probe()
    async with serving(probe.wait, certificate, Limits()) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        peer.request(get())
        await soon(probe.started)
        await peer.round_trip()
        relay.dark = True
        edge.later(11)  # asks for a sign of life
        edge.later(11 + Limits().stalled_write_s + 1)
        await soon(probe.disconnected)
        relay.dark = False
        other = await Peer.open(relay.port, edge.ca)
        await other.round_trip()
        assert other.closed is None
        other.close()


async def test_a_short_darkness_is_outlived(certificate: DevCertificate) -> None:
    upstream = Upstream()
    async with serving(upstream, certificate) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        stream = peer.request(post("/1"), bytes(BODY), end=False)
        await peer.round_trip()
        relay.dark = True
        peer.data(stream, b"in the dark")
        lost = relay.counts.lost
        async with asyncio.timeout(20):
            while relay.counts.lost < lost + 2:  # noqa: ASYNC110  # sent again at least once, for nothing
                await asyncio.sleep(0.005)
        relay.dark = False
        peer.data(stream, b", and in the light", end=True)
        assert (await peer.reply(stream)).body == bytes(BODY) + b"in the dark, and in the light"
        assert upstream.calls == {"/1": 1}
