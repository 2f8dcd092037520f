"""A client that leaves, in every way it can, is told to the application at once."""

from __future__ import annotations

import asyncio

import pycurl
import pytest

from edgeproxy.wire.h3 import Session
from edgeproxy.wire.ingress import Ingress, Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Edge, Probe, reply, serving, soon
from tests.client.h3_peer import Peer, get, post


def cancel(peer: Peer, stream_id: int) -> None:
    peer.cancel(stream_id)


def stop(peer: Peer, stream_id: int) -> None:
    peer.stop(stream_id)


def leave(peer: Peer, stream_id: int) -> None:
    peer.close()


ways = pytest.mark.parametrize("leaving", [cancel, stop, leave])


@ways
@pytest.mark.parametrize("complete", [True, False], ids=["complete", "uploading"])
async def test_a_waiting_application_is_told(leaving: object, complete: bool, certificate: DevCertificate) -> None:
    assert callable(leaving)
    probe = Probe()
    async with serving(probe.wait, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(post(), b"part", end=complete)
        await soon(probe.started)
        leaving(peer, stream)
        await soon(probe.disconnected)
        await soon(probe.send_failed)


@ways
async def test_a_streaming_application_is_told(leaving: object, certificate: DevCertificate) -> None:
    assert callable(leaving)
    probe = Probe()
    async with serving(probe.flood, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(get())
        await peer.until(lambda: peer.at(stream).body)
        leaving(peer, stream)
        await soon(probe.send_failed)


async def test_a_curl_that_is_interrupted_ends_the_application(certificate: DevCertificate) -> None:
    probe = Probe()

    def interrupted(url: str, ca: str) -> None:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.HTTP_VERSION, 31)
        curl.setopt(pycurl.CAINFO, ca)
        curl.setopt(pycurl.WRITEFUNCTION, lambda data: 0)  # curl aborts the transfer
        with pytest.raises(pycurl.error):
            curl.perform()
        curl.close()

    async with serving(probe.flood, certificate) as edge:
        await asyncio.to_thread(interrupted, edge.url, str(edge.ca))
        await soon(probe.send_failed)


async def test_one_cancelled_request_leaves_the_others_of_its_connection_alone(certificate: DevCertificate) -> None:
    probe, other = Probe(), Probe()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (probe.wait if scope["path"] == "/cancelled" else other.hold)(scope, receive, send)

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        kept, gone = peer.request(get("/kept")), peer.request(get("/cancelled"))
        await soon(probe.started)
        await soon(other.started)
        peer.cancel(gone)
        await soon(probe.disconnected)
        other.go.set()
        assert (await peer.reply(kept)).body == b"held"


async def test_a_request_taken_back_in_the_same_datagram_never_starts(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hold, certificate) as edge:
        peer = await edge.peer()
        assert peer.h3
        stream = peer.quic.get_next_available_stream_id()
        peer.h3.send_headers(stream, get(), end_stream=True)
        peer.quic.stop_stream(stream, 0x10C)
        peer.flush()
        answer = await peer.reply(stream)
        assert answer.reset == 0x10C
        probe.go.set()
        assert (await peer.reply(peer.request(get()))).body == b"held"
    assert probe.calls == 1


async def test_a_finished_request_knows_no_disconnect(certificate: DevCertificate) -> None:
    """After the answer `receive` says disconnect, but `send` had no reason to fail and the task is not cancelled."""
    after = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await reply(send, b"done")
        assert (await receive())["type"] == "http.disconnect"
        after.set()

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        assert (await peer.reply(peer.request(get()))).body == b"done"
        await soon(after)


async def test_an_application_that_notices_nothing_is_cancelled(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hang, certificate, Limits(cancel_grace_s=0)) as edge:
        peer = await edge.peer()
        stream = peer.request(get())
        await soon(probe.started)
        peer.cancel(stream)
        await soon(probe.cancelled)


async def test_a_client_that_vanished_is_given_up(certificate: DevCertificate) -> None:
    """No packet says so: the keep-alive PING stays unanswered."""
    probe = Probe()
    limits = Limits()
    async with serving(probe.wait, certificate, limits) as edge:
        peer = await edge.peer()
        peer.request(get())
        await soon(probe.started)
        await peer.round_trip()
        peer.deaf = True
        edge.later(11)
        assert not probe.disconnected.is_set()
        edge.later(12 + limits.stalled_write_s)
        await soon(probe.disconnected)


def sessions(edge: Edge) -> list[Session]:
    assert edge.listener._endpoint is not None
    return [connection for connection in edge.listener._endpoint.connections if isinstance(connection, Session)]


async def test_a_client_that_answers_pings_is_waited_for(certificate: DevCertificate) -> None:
    probe = Probe()
    async with serving(probe.hold, certificate) as edge:
        peer = await edge.peer()
        stream = peer.request(get())
        await soon(probe.started)
        edge.later(11)
        async with asyncio.timeout(20):
            while any(session._pinged for session in sessions(edge)):
                await peer.round_trip()
        edge.later(1000)
        probe.go.set()
        assert (await peer.reply(stream)).body == b"held"


async def test_the_end_of_an_answer_is_no_leaving(certificate: DevCertificate) -> None:
    left: list[Ingress] = []
    seen: list[Ingress] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        known = ingress(scope)
        assert known is not None
        known.on_gone = lambda: left.append(known)
        seen.append(known)
        await reply(send, b"")

    async with serving(app, certificate) as edge:
        peer = await edge.peer()
        await peer.reply(peer.request(get()))
        peer.close()
    assert len(seen) == 1
    assert not left
