"""A stateless reset ends a connection at once, and nothing else is taken for one (RFC 9000 section 10.3)."""

from __future__ import annotations

import os

import pytest
from aioquic.quic.connection import QuicConnectionState

from edgeproxy.client.aioquic_internals.peer_reset import LEAST_RESET
from edgeproxy.wire.tls import DevCertificate
from tests.client.test_aioquic_internals import SERVER, Pair


@pytest.fixture
def pair(certificate: DevCertificate) -> Pair:
    return Pair(certificate)


def reset(token: bytes, size: int = 43) -> bytes:
    """It looks like a short packet of some other connection."""
    return bytes([0x40 | os.urandom(1)[0] & 0x3F]) + os.urandom(size - 17) + token


def token(pair: Pair) -> bytes:
    """Of the connection ID that the client uses, as the server has handed it out."""
    (used,) = [cid for cid in pair.server._host_cids if cid.cid == pair.client._peer_cid.cid]
    return used.stateless_reset_token


@pytest.mark.parametrize("size", [LEAST_RESET, 43, 1200])
def test_it_ends_the_connection_and_nothing_more_is_sent(pair: Pair, size: int) -> None:
    pair.client.send_stream_data(0, b"a request")
    pair.client.receive_datagram(reset(token(pair), size), SERVER, pair.now)
    assert pair.client.ended
    assert pair.client.reset_by_peer
    assert "stateless reset" in pair.client.end_reason
    assert pair.client._state is QuicConnectionState.DRAINING
    assert pair.client.datagrams_to_send(pair.now) == []


def test_the_token_of_a_later_connection_id_counts_once_that_is_used(pair: Pair) -> None:
    old = token(pair)
    pair.client.change_connection_id()
    pair.run()
    new = token(pair)
    assert new != old
    pair.client.receive_datagram(reset(old), SERVER, pair.now)
    assert not pair.client.ended
    pair.client.receive_datagram(reset(new), SERVER, pair.now)
    assert pair.client.reset_by_peer


def test_what_only_looks_like_one_is_dropped(pair: Pair) -> None:
    unused = pair.client._peer_cid_available[0].stateless_reset_token
    assert len(unused) == 16
    real = token(pair)
    for data in (reset(os.urandom(16)), reset(unused), reset(real)[-LEAST_RESET + 1 :], reset(real) + b"x", b"", real):
        pair.client.receive_datagram(data, SERVER, pair.now)
    assert not pair.client.ended
    pair.client.send_stream_data(0, b"still there")
    pair.run()
    assert pair.received(pair.server, 0) == len(b"still there")


def test_a_server_whose_client_handed_out_no_token_takes_nothing_for_one(pair: Pair) -> None:
    pair.server._peer_cid.stateless_reset_token = b""
    pair.server.receive_datagram(reset(bytes(16)), ("127.0.0.1", 1), pair.now)
    assert not pair.server.ended


def test_it_is_known_whether_a_stream_was_heard_of_and_whether_the_peer_is_silent(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"seen")
    pair.run()
    pair.client.send_stream_data(4, b"not seen")
    pair.client.datagrams_to_send(pair.now)
    assert [pair.client.untouched(stream) for stream in (0, 4, 8)] == [False, True, False]
    assert not pair.client.probed
    at = pair.client.get_timer()
    assert at is not None
    pair.client.handle_timer(at)
    assert pair.client.probed
    pair.now = at
    pair.run()
    assert not pair.client.probed, "it was answered"
