"""Listeners that share a UDP socket, as processes do to which it was handed: nobody who comes is refused, and nobody
who is there is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from edgeproxy.client.any_quic import Address
from edgeproxy.wire import handover
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.handover import Handover, packed, unpacked
from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import App, Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, reply, soon
from tests.client.h3_peer import Peer, get

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="processes find each other in Linux's abstract namespace"
)


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def shared(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with socket.socket(request.param, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1" if request.param == socket.AF_INET else "::1", 0))
        yield sock


def same(sock: socket.socket) -> socket.socket:
    return socket.socket(fileno=os.dup(sock.fileno()))


def named(name: bytes) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, name)

    return app


class House:
    """Processes and clients of one socket; all of them end with the test."""

    def __init__(self, stack: AsyncExitStack, sock: socket.socket, certificate: DevCertificate) -> None:
        self._stack = stack
        self._sock = sock
        self._certificate = certificate

    async def generation(self, app: App) -> QuicListener:
        own = self._certificate
        listener = QuicListener(app, Limits(), certificate=own.certificate, key=own.key, state={})
        await listener.start(same(self._sock))
        self._stack.push_async_callback(listener.drain, 0)
        return listener

    async def client(self) -> Peer:
        host, port = self._sock.getsockname()[:2]
        peer = await Peer.open(port, self._certificate.ca, host=host)
        self._stack.callback(peer.close)
        return peer


@asynccontextmanager
async def house(sock: socket.socket, certificate: DevCertificate) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(stack, sock, certificate)


async def ask(peer: Peer) -> bytes:
    return (await peer.reply(peer.request(get()))).body


async def test_while_one_drains_the_next_takes_who_comes_and_nobody_is_cut(
    shared: socket.socket, certificate: DevCertificate
) -> None:
    probe = Probe()
    async with house(shared, certificate) as home:
        elder, _ = await home.generation(probe.hold), await home.generation(named(b"next"))
        early = await home.client()
        stream = early.request(get())
        await soon(probe.started)
        drained = asyncio.create_task(elder.drain(20))
        await asyncio.sleep(0)
        late = await home.client()
        assert await ask(late) == b"next"
        assert not drained.done()
        probe.go.set()
        assert (await early.reply(stream)).body == b"held"
        await drained
        assert await ask(late) == b"next"
        assert await ask(await home.client()) == b"next"


async def test_three_in_a_row_serve_their_own(shared: socket.socket, certificate: DevCertificate) -> None:
    probes = Probe(), Probe()
    async with house(shared, certificate) as home:
        drains: list[asyncio.Task[None]] = []
        held: list[tuple[Peer, int]] = []
        for probe in probes:
            listener = await home.generation(probe.hold)
            peer = await home.client()
            held.append((peer, peer.request(get())))
            await soon(probe.started)
            drains.append(asyncio.create_task(listener.drain(20)))
        await home.generation(named(b"third"))
        late = await home.client()
        assert await ask(late) == b"third"
        probes[1].go.set()  # the one in the middle is done first, and stays for what the first passes on
        assert (await held[1][0].reply(held[1][1])).body == b"held"
        await held[1][0].closing()
        for _ in range(3):
            assert await ask(late) == b"third"
        assert not drains[1].done()
        probes[0].go.set()
        assert (await held[0][0].reply(held[0][1])).body == b"held"
        await asyncio.gather(*drains)
        assert await ask(late) == b"third"


async def test_who_waits_gets_nothing_before_the_elder_drains_and_may_leave_again(
    shared: socket.socket, certificate: DevCertificate
) -> None:
    async with house(shared, certificate) as home:
        elder, waiting = await home.generation(named(b"elder")), await home.generation(named(b"waiting"))
        assert elder.succeeded
        assert await ask(await home.client()) == b"elder"
        await waiting.drain(20)  # at once: nobody comes after it
        async with asyncio.timeout(20):
            while elder.succeeded:  # noqa: ASYNC110 - a state, not an event
                await asyncio.sleep(0.001)
        assert await ask(await home.client()) == b"elder"
        await home.generation(named(b"other"))
        await elder.drain(20)
        assert await ask(await home.client()) == b"other"


async def test_an_elder_that_ends_without_a_word_is_followed(
    shared: socket.socket, certificate: DevCertificate
) -> None:
    async with house(shared, certificate) as home:
        elder, _ = await home.generation(named(b"elder")), await home.generation(named(b"next"))
        elder.close()
        assert await ask(await home.client()) == b"next"


async def test_an_elder_that_does_not_answer_is_named(shared: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "PATIENCE_S", 0.05)
    line = Handover(shared, lambda data, address: None, lambda: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf:
        deaf.bind(f"\0edgeproxy-h3-{os.fstat(shared.fileno()).st_ino}")
        deaf.listen(0)
        with pytest.raises(OSError, match="does not answer"):
            await line.join()
    line.close()


async def test_a_process_of_another_user_is_not_let_in(shared: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Handover(shared, lambda data, address: None, lambda: None)
    assert not await line.join()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    name = f"\0edgeproxy-h3-{os.fstat(shared.fileno()).st_ino}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.setblocking(False)
        stranger.connect(name)
        async with asyncio.timeout(20):
            assert await asyncio.get_running_loop().sock_recv(stranger, 1) == b""
    assert not line.succeeded
    assert not line.pass_on(b"x", ("127.0.0.1", 1))
    line.close()


async def test_what_a_successor_has_no_room_for_is_lost_and_holds_nobody_up(shared: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    line = Handover(shared, lambda data, address: None, lambda: None)
    assert not await line.join()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as successor:
        successor.setblocking(False)
        successor.connect(f"\0edgeproxy-h3-{os.fstat(shared.fileno()).st_ino}")
        async with asyncio.timeout(20):
            await loop.sock_recv(successor, 1)
        for number in range(5000):
            assert line.pass_on(b"%d" % number + bytes(1200), ("127.0.0.1", 9))
        first, _ = unpacked(await loop.sock_recv(successor, 4096))
        assert first.startswith(b"0\0")
    line.close()


@pytest.mark.parametrize("address", [("127.0.0.1", 65535), ("2001:db8::1", 1, 0, 0), ("fe80::1%eth0", 443, 7, 3)])
@pytest.mark.parametrize("data", [b"", b"x", bytes(65_507)], ids=len)
def test_a_datagram_and_whose_it_is_arrive_as_they_were(data: bytes, address: Address) -> None:
    assert unpacked(packed(data, address)) == (data, address)
