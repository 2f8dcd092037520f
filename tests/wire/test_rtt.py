from __future__ import annotations

import asyncio
import socket
import struct
import sys

import pytest

from edgeproxy.wire.rtt import RoundTrip, TcpInfo, parse_tcp_info, tcp_info


def raw(size: int, *, rtt: int = 40_000, rttvar: int = 500, min_rtt: int = 39_000, last_ack: int = 7) -> bytes:
    """A `struct tcp_info` as a kernel that knows `size` bytes of it returns it."""
    data = bytearray(256)
    struct.pack_into("=I", data, 56, last_ack)
    struct.pack_into("=II", data, 68, rtt, rttvar)
    struct.pack_into("=I", data, 148, min_rtt)
    return bytes(data[:size])


def test_times_are_seconds() -> None:
    assert parse_tcp_info(raw(256)) == TcpInfo(rtt=0.04, rttvar=0.0005, min_rtt=0.039, last_ack_recv=0.007)


def test_an_old_kernel_gives_what_it_knows() -> None:
    old = parse_tcp_info(raw(104))
    assert old is not None
    assert (old.rtt, old.min_rtt) == (0.04, None)
    assert parse_tcp_info(raw(75)) is None
    assert parse_tcp_info(b"") is None


def test_a_round_trip_that_was_never_measured_is_not_zero() -> None:
    assert parse_tcp_info(raw(256, rtt=0)) is None
    unknown = parse_tcp_info(raw(256, min_rtt=0xFFFFFFFF))
    assert unknown is not None
    assert unknown.min_rtt is None


@pytest.mark.skipif(sys.platform != "linux", reason="TCP_INFO as laid out by Linux")
def test_a_live_connection_has_a_plausible_round_trip() -> None:
    """The contract with the kernel: the offsets are where they are believed to be."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            for _ in range(20):
                client.sendall(b"x")
                accepted.sendall(accepted.recv(1))
                client.recv(1)
            info = tcp_info(client)
            assert info is not None
            assert info.min_rtt is not None
            assert 0 < info.min_rtt <= info.rtt < 1
            assert 0 < info.rttvar < 1
            assert info.last_ack_recv < 60


def test_the_least_is_told_so_that_held_back_acknowledgements_do_not_count() -> None:
    held_back, old = parse_tcp_info(raw(256, rtt=15_000, min_rtt=30)), parse_tcp_info(raw(148, rtt=15_000))
    assert held_back is not None and held_back.least == 0.00003
    assert old is not None and old.least == 0.015


def test_a_socket_without_tcp_has_no_round_trip() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert tcp_info(ours) is None


def test_a_connection_asks_the_kernel_once_in_a_while() -> None:
    class Transport(asyncio.BaseTransport):
        asked = 0

        def is_closing(self) -> bool:
            self.asked += 1
            return True

    transport = Transport()
    round_trip = RoundTrip(transport)
    for now in (0.0, 0.5, 0.99):
        assert round_trip.at(now) is None
    assert transport.asked == 1
    round_trip.at(1.0)
    assert transport.asked == 2
