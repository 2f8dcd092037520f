"""Resumed TLS sessions and early data: faster for the client, and nothing that can be replayed."""

from __future__ import annotations

import datetime

import pytest
from aioquic.tls import CipherSuite, SessionTicket

from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tickets import Tickets
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, Probe, echo, serving, soon
from tests.client.h3_peer import Peer, get, post


async def ticket(edge: Edge) -> SessionTicket:
    peer = await edge.peer()
    return (await peer.until(lambda: peer.tickets))[0]


async def early(edge: Edge, session: SessionTicket) -> Peer:
    """A peer that can ask before its handshake is over; what the server says is kept from it until `found()`."""
    peer = await edge.peer(wait=False, session_ticket=session)
    peer.lost = []
    peer.speak_early()
    return peer


async def test_a_session_is_resumed_once(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        session = await ticket(edge)
        again = await edge.peer(session_ticket=session)
        assert again.resumed
        assert (await again.reply(again.request(get()))).status == 200
        replayed = await edge.peer(session_ticket=session)
        assert not replayed.resumed
        assert (await replayed.reply(replayed.request(get()))).status == 200


async def test_a_safe_request_is_served_before_the_handshake_is_over(certificate: DevCertificate) -> None:
    probe = Probe()
    probe.go.set()
    async with serving(probe.hold, certificate) as edge:
        peer = await early(edge, await ticket(edge))
        stream = peer.request(get())
        await soon(probe.started)  # the client has answered nothing of the server's handshake
        peer.found()
        assert (await peer.reply(stream)).body == b"held"
        assert peer.early_data_accepted


async def test_any_other_request_waits_for_the_end_of_the_handshake(certificate: DevCertificate) -> None:
    probe = Probe()
    probe.go.set()
    async with serving(probe.hold, certificate) as edge:
        peer = await early(edge, await ticket(edge))
        unsafe = peer.request(post(), b"body")
        safe = peer.request(get())
        await soon(probe.started)
        assert probe.calls == 1, "only the safe one, though it came later"
        peer.found()
        assert (await peer.reply(unsafe)).body == (await peer.reply(safe)).body == b"held"
        assert probe.calls == 2


async def test_early_data_of_a_replayed_ticket_is_not_read(certificate: DevCertificate) -> None:
    async with serving(echo, certificate) as edge:
        session = await ticket(edge)
        await edge.peer(session_ticket=session)
        probe_peer = await early(edge, session)
        stream = probe_peer.request(get())
        probe_peer.found()
        await probe_peer.until(lambda: probe_peer._ready or probe_peer.closed)
        assert not probe_peer.early_data_accepted
        assert (await probe_peer.reply(stream)).status == 200, "sent again once the handshake was over"


async def test_sessions_are_remembered_up_to_the_limit(certificate: DevCertificate) -> None:
    async with serving(echo, certificate, Limits(tickets=2)) as edge:
        sessions = [await ticket(edge) for _ in range(3)]
        resumed = [(await edge.peer(session_ticket=sessions[index])).resumed for index in (2, 0)]
        assert resumed == [True, False], "the oldest was pushed out"


def made(label: bytes, lives: datetime.timedelta) -> SessionTicket:
    now = datetime.datetime.now(datetime.UTC)
    return SessionTicket(1, CipherSuite.AES_128_GCM_SHA256, now + lives, now - datetime.timedelta(1), b"s", "h", label)


@pytest.mark.parametrize(("lives", "known"), [(1, True), (-1, False)])
def test_an_expired_ticket_is_none(lives: int, known: bool) -> None:
    tickets = Tickets(8)
    tickets.add(made(b"t", datetime.timedelta(lives / 24)))
    assert (tickets.take(b"t") is not None) == known
    assert tickets.take(b"t") is None
    assert len(tickets) == 0
