"""Going away: what was accepted is finished, what was not can be sent elsewhere."""

from __future__ import annotations

import asyncio

import pytest
from aioquic.h3.connection import ErrorCode
from aioquic.quic.packet import QuicErrorCode

from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, echo, serving, soon
from tests.client.h3_peer import get


async def test_accepted_requests_end_and_late_ones_are_rejected(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hold, certificate) as edge:
        peer = await edge.peer()
        early = peer.request(get())
        await soon(probe.started)
        drained = asyncio.create_task(edge.listener.drain(20))
        await asyncio.sleep(0)  # the first GOAWAY is on its way
        for _ in range(2):
            await peer.round_trip()
        late = peer.request(get())
        assert (await peer.reply(late)).reset == ErrorCode.H3_REQUEST_REJECTED
        with pytest.raises(ConnectionError, match=f"0x{QuicErrorCode.CONNECTION_REFUSED:x}"):
            await edge.peer()
        probe.go.set()
        assert (await peer.reply(early)).body == b"held"
        await drained
        assert (await peer.closing()).error_code == ErrorCode.H3_NO_ERROR
    assert probe.calls == 1


async def test_a_request_between_the_two_goaways_is_served(certificate: DevCertificate) -> None:
    """The first GOAWAY promises to serve what was sent before it arrived."""
    probe = Probe()
    async with serving(probe.hold, certificate) as edge:
        peer = await edge.peer()
        first = peer.request(get())
        await soon(probe.started)
        drained = asyncio.create_task(edge.listener.drain(20))
        second = peer.request(get())  # leaves before the peer has read anything
        probe.go.set()
        assert (await peer.reply(first)).body == (await peer.reply(second)).body == b"held"
        await drained


async def test_a_drain_that_takes_too_long_cuts(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hang, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(get())
        await soon(probe.started)
        await edge.listener.drain(0.01)
        assert probe.cancelled.is_set()
        await peer.closing()
        assert not peer.at(stream).ended


async def test_a_large_answer_is_delivered_before_the_close(certificate: DevCertificate) -> None:
    body = bytes(300_000)
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(get("/"), body)
        await peer.until(lambda: peer.at(stream).status)
        await edge.listener.drain(20)
        await peer.closing()
        assert peer.at(stream).body == b"GET / " + body
        assert peer.at(stream).ended


async def test_who_is_gone_or_never_came_whole_holds_no_drain_up(certificate: DevCertificate) -> None:
    """A client that went without a word, one whose handshake is not over (a browser's that TCP was faster than), and
    one that is there and hears that all is over."""
    limits = Limits()
    async with serving(echo, certificate, limits) as edge:
        (await edge.peer(wait=False)).deaf = True
        gone, there = await edge.peer(), await edge.peer()
        for peer in (gone, there):
            assert (await peer.reply(peer.request(get()))).status == 200
            await peer.round_trip()
        gone.deaf = True
        assert edge.listener.connections == 3
        drained = asyncio.create_task(edge.listener.drain(1000))
        assert (await there.closing()).error_code == ErrorCode.H3_NO_ERROR
        assert edge.listener.connections == 2
        assert not drained.done()
        edge.later(limits.late_request_s + 0.1)
        assert limits.late_request_s + 0.1 < limits.handshake_s
        async with asyncio.timeout(20):
            await drained


async def test_who_does_not_acknowledge_an_answer_holds_no_drain_up_for_long(certificate: DevCertificate) -> None:
    """libcurl looks at no socket between two requests: it has the answer, and the server never learns that."""
    limits, probe = Limits(), Probe()
    async with serving(probe.hold, certificate, limits) as edge:
        peer = await edge.peer()
        peer.request(get())
        await soon(probe.started)
        peer.deaf = True
        probe.go.set()
        drained = asyncio.create_task(edge.listener.drain(1000))
        edge.later(limits.late_request_s + 0.1)
        await asyncio.sleep(0.05)
        assert not drained.done(), "the answer may only have been lost"
        edge.later(3 * limits.late_request_s + 1)
        async with asyncio.timeout(20):
            await drained


async def test_a_listener_is_healthy_until_it_drains(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        assert edge.listener.healthy
        await edge.listener.drain(0)
        assert not edge.listener.healthy


async def test_a_listener_that_lost_its_socket_is_not_healthy(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        edge.listener.close()
        assert not edge.listener.healthy


async def test_an_idle_listener_drains_at_once_and_frees_its_port(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        peer = await edge.peer()
        await edge.listener.drain(20)
        await peer.closing()
        late = await edge.peer(wait=False)
        await late.until(lambda: late.refused)
