"""Why connections end: names without end are none, and who is said to have left has left."""

from __future__ import annotations

from typing import Literal

import pytest
from aioquic.h3.connection import ErrorCode
from aioquic.quic.packet import QuicErrorCode

from edgeproxy.client.any_quic import Ending
from edgeproxy.observe.quic import ERRORS, HANDSHAKES, OTHER, QuicCounts
from edgeproxy.wire.ingress import Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.quic_errors import cause, error_name, handshake_failure
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_edge import Probe, echo, serving, soon
from tests.client.h3_peer import get, post
from tests.wire.test_h3_network import Upstream, relayed
from tests.wire.udp_relay import Faults


def ending(code: int, *, by: Literal["us", "peer", "silence"] = "us", application: bool = True) -> Ending:
    return Ending(by, code, application, "")


def test_every_error_has_a_name_of_the_table_and_every_name_is_an_error() -> None:
    names = [error_name(ending(code)) for code in ErrorCode]
    names += [error_name(ending(code, application=False)) for code in QuicErrorCode]
    assert set(names) == set(ERRORS)
    assert len(set(names)) == len(names) == len(ERRORS)


def test_numbers_without_a_name_are_one() -> None:
    assert {error_name(ending(code)) for code in (1, 0x111, 2**62 - 1)} == {OTHER}
    assert {error_name(ending(code, application=False)) for code in (0x12, 0x200, 2**40)} == {OTHER}
    assert {error_name(ending(code, application=False)) for code in range(0x100, 0x200)} == {"CRYPTO_ERROR"}
    assert error_name(ending(0)) == "NO_ERROR"


def test_failed_handshakes_are_of_the_table() -> None:
    found = {handshake_failure(None)} | {
        handshake_failure(ending(1, by=by, application=application))
        for by in ("us", "peer", "silence")
        for application in (True, False)
    }
    assert found == {"unreadable", "cut", "failed", "closed_by_peer", "timed_out"} < set(HANDSHAKES)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (ending(ErrorCode.H3_EXCESSIVE_LOAD), (429, "excessive_load")),
        (ending(ErrorCode.H3_FRAME_UNEXPECTED), (400, "protocol_error")),
        (ending(QuicErrorCode.FRAME_ENCODING_ERROR, application=False), (400, "protocol_error")),
        (ending(ErrorCode.H3_INTERNAL_ERROR), (500, "internal_error")),
        (ending(ErrorCode.H3_NO_ERROR), None),
        (ending(ErrorCode.H3_EXCESSIVE_LOAD, by="peer"), None),
        (ending(0, by="silence", application=False), None),
        (None, None),
    ],
)
def test_a_request_that_went_with_its_connection_is_told_of_only_where_we_ended_it(
    end: Ending | None, told: tuple[int, str] | None
) -> None:
    error = cause(end)
    assert (error and (error.status, error.code)) == told


async def test_a_connection_that_we_close_is_not_a_client_that_left(certificate: DevCertificate) -> None:
    refused: list[str | None] = []
    probe, counts = Probe(), QuicCounts()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await probe.wait(scope, receive, send)
        finally:
            known = ingress(scope)
            assert known is not None
            refused.append(None if known.refused is None else known.refused.code)

    async with serving(app, certificate, Limits(resets_burst=0, resets_per_s=0), counts=counts) as edge:
        ours, theirs = await edge.peer(), await edge.peer()
        ours.request(get())
        await soon(probe.started)
        ours.cancel(ours.request(get()))
        await ours.closing()
        await soon(probe.send_failed)
        probe.started.clear()
        probe.send_failed.clear()
        theirs.request(get())
        await soon(probe.started)
        theirs.close()
        await soon(probe.send_failed)
    # The request that was taken back, and the one beside it, which lost its connection; then the one that was left.
    assert refused.count("excessive_load") >= 1
    assert refused[-1] is None
    assert counts.ended["us", "H3_EXCESSIVE_LOAD"] == 1
    assert counts.ended["peer", "H3_NO_ERROR"] == 1


async def test_what_became_of_connections_is_counted(certificate: DevCertificate) -> None:
    counts = QuicCounts()
    limits = Limits(connections_per_address=2, half_open=8)
    async with serving(echo, certificate, limits, counts=counts) as edge:
        first = await edge.peer()
        assert (await first.reply(first.request(get()))).status == 200
        assert counts.open() == 1
        await edge.peer()
        with pytest.raises(ConnectionError):
            await edge.peer()
        assert counts.handshakes == {"completed": 2, "refused_limit": 1}
    async with serving(echo, certificate, Limits(half_open=8), counts=counts) as edge:
        for _ in range(2):
            (await edge.peer(wait=False)).deaf = True
        honest = await edge.peer()
        assert (await honest.reply(honest.request(get()))).status == 200
        assert counts.retries == 1
        edge.later(1000)
        await honest.round_trip()
        assert counts.handshakes["timed_out"] == 2
        picky = await edge.peer(wait=False, alpn_protocols=["hq-interop"])
        await picky.closing()
        assert counts.handshakes["failed"] == 1
        assert counts.ended["us", "CRYPTO_ERROR"] == 1


async def test_a_client_that_goes_on_from_another_address_is_counted_once(certificate: DevCertificate) -> None:
    counts = QuicCounts()
    async with serving(Upstream(), certificate, counts=counts) as edge, relayed(edge, 1, Faults()) as (relay, peer):
        for number in range(1, 4):
            await relay.rebind()
            assert (await peer.reply(peer.request(post("/"), b"x"))).ended
            await peer.round_trip()
            assert counts.migrations == number
