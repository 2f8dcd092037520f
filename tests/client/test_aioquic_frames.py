"""What the frames of a datagram cost is known, and no stream is torn into more pieces than a network tears it."""

from __future__ import annotations

import pytest

from edgeproxy.client.aioquic_internals.frames import FRAMES, FREE_FRAMES, LEAST_GAPS
from edgeproxy.wire.tls import DevCertificate
from tests.client.h3_peer import packet, stream_frame
from tests.client.test_aioquic_internals import CLIENT, SERVER, WINDOW, Pair

GAPS = max(LEAST_GAPS, WINDOW // 512)


@pytest.fixture
def pair(certificate: DevCertificate) -> Pair:
    return Pair(certificate)


def send(pair: Pair, frames: bytes) -> None:
    pair.server.receive_datagram(packet(pair.client, frames), CLIENT, pair.now)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x01",
        b"\x10\x01",
        b"\x14\x01",
        b"\x1a12345678",
        stream_frame(0, 0, b"x"),
        stream_frame(0, 0, b""),
        b"\x06\0\x01x",
    ],
    ids=["PING", "MAX_DATA", "DATA_BLOCKED", "PATH_CHALLENGE", "one octet", "none", "CRYPTO"],
)
def test_every_frame_of_a_datagram_counts_and_those_that_bring_next_to_nothing_are_charged(
    pair: Pair, frame: bytes
) -> None:
    send(pair, 20 * frame)
    assert pair.server.frames == 21  # and the PING of each packet
    assert 19 - FREE_FRAMES <= pair.server.idle_frames <= 21 - FREE_FRAMES
    send(pair, 3 * b"\x01")
    assert (pair.server.frames, pair.server.idle_frames) == (4, 0)


def test_frames_for_a_stream_that_has_ended_are_charged_too(pair: Pair) -> None:
    pair.client.send_stream_data(0, b"x", end_stream=True)
    pair.run()
    pair.server.send_stream_data(0, b"", end_stream=True)
    pair.run()
    assert pair.server._stream_is_discarded(0)
    send(pair, 20 * stream_frame(0, 0, b"x"))
    assert pair.server.frames == 21
    assert pair.server.idle_frames > 19 - FREE_FRAMES


@pytest.mark.parametrize("lost", [0, 3, 7], ids=["nothing lost", "a third lost", "a seventh lost"])
def test_an_upload_and_a_download_are_charged_nothing_and_break_no_limit(pair: Pair, lost: int) -> None:
    """Whatever the network loses of them."""
    size, number, held = 8 * WINDOW, 0, {}
    pair.client.send_stream_data(0, bytes(size))
    pair.server.send_stream_data(1, bytes(size))
    for turn in range(3000):
        for quic, peer, source in ((pair.client, pair.server, CLIENT), (pair.server, pair.client, SERVER)):
            timer = quic.get_timer()
            if timer is not None and timer <= pair.now:
                quic.handle_timer(pair.now)
            for data, _ in quic.datagrams_to_send(pair.now):
                number += 1
                if not lost or number % lost:
                    peer.receive_datagram(data, source, pair.now)
                    assert peer.idle_frames == 0
            while (event := quic.next_event()) is not None:
                pair.heard[quic].append(event)
        pair.now += 0.01
        held[turn] = pair.received(pair.server, 0)
        if held[turn] == pair.received(pair.client, 1) == size:
            break
    assert not pair.server.ended
    assert not pair.client.ended
    assert held[turn] == size


def test_a_stream_in_more_pieces_than_its_window_explains_ends_the_connection(pair: Pair) -> None:
    for piece in range(1, GAPS + 1):
        send(pair, stream_frame(0, 2 * piece, b"x"))
    assert not pair.server.ended
    send(pair, stream_frame(0, 2 * (GAPS + 1), b"x"))
    assert pair.server.ended
    assert "too many pieces" in pair.server.end_reason


def test_a_handshake_in_too_many_pieces_ends_the_connection(pair: Pair) -> None:
    for piece in range(1, GAPS + 2):
        send(pair, b"\x06" + stream_frame(0, 2 * piece, b"x")[2:])
    assert "too many pieces" in pair.server.end_reason


def test_a_datagram_of_more_frames_than_an_ethernet_frame_has_room_for_ends_the_connection(pair: Pair) -> None:
    send(pair, b"\x01" * 1450)
    assert not pair.server.ended
    send(pair, b"\x01" * 30_000)
    assert pair.server.ended
    assert pair.server.frames == FRAMES + 1
