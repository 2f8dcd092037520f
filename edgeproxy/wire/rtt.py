"""What the kernel knows of a TCP connection's round trip (Linux `struct tcp_info`, include/uapi/linux/tcp.h)."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from math import inf
from typing import Protocol

MAX_AGE_S = 1.0

_TCP_INFO = getattr(socket, "TCP_INFO", None)
_SIZE = 256
_LAST_ACK_RECV, _RTT, _MIN_RTT = 56, 68, 148
"""Byte offsets; `tcpi_rtt` is followed by `tcpi_rttvar`."""


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """All in seconds."""

    rtt: float
    """Smoothed round trip (RFC 6298)."""
    rttvar: float
    min_rtt: float | None
    """The smallest in the kernel's window (5 minutes by default); None before Linux 4.6."""
    last_ack_recv: float
    """Since the last ACK from the peer: how old the rest is."""

    @property
    def least(self) -> float:
        """The smallest known; the smoothed one on a kernel that tells no other."""
        return self.rtt if self.min_rtt is None else self.min_rtt


class RoundTrip:
    """A connection's round trip, asked of the kernel at most once in MAX_AGE_S: the question costs a system call, and
    the kernel's own estimate moves no faster than its exchanges.

    It is the smallest of the kernel's window, not the smoothed one: that counts how long a client holds its
    acknowledgements back (RFC 9293 section 3.8.6.3; 15 ms where 0.03 are true), for which no user waits.
    """

    __slots__ = ("_known", "_known_at", "_transport")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._known: float | None = None
        self._known_at = -inf

    def at(self, now: float) -> float | None:
        """Seconds; None where the kernel knows nothing. `now`: any clock that only goes forward."""
        if now - self._known_at >= MAX_AGE_S:
            info = transport_tcp_info(self._transport)
            self._known, self._known_at = info.least if info is not None else None, now
        return self._known


class _HasOptions(Protocol):
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def transport_tcp_info(transport: asyncio.BaseTransport) -> TcpInfo | None:
    """As `tcp_info`; also None once the transport closes: its descriptor may belong to another connection by then."""
    sock = None if transport.is_closing() else transport.get_extra_info("socket")
    return tcp_info(sock) if sock is not None else None


def tcp_info(sock: _HasOptions) -> TcpInfo | None:
    """None where the platform, the socket or its state gives nothing, or no round trip is measured yet."""
    if _TCP_INFO is None:
        return None
    try:
        return parse_tcp_info(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _SIZE))
    except OSError:
        return None


def parse_tcp_info(raw: bytes) -> TcpInfo | None:
    """A kernel returns as many bytes as it knows fields; None when `tcpi_rtt` is missing or still zero."""
    if len(raw) < _RTT + 8:
        return None
    (last_ack_recv_ms,) = struct.unpack_from("=I", raw, _LAST_ACK_RECV)
    rtt_us, rttvar_us = struct.unpack_from("=II", raw, _RTT)
    if rtt_us == 0:
        return None
    min_rtt = None
    if len(raw) >= _MIN_RTT + 4:
        (min_rtt_us,) = struct.unpack_from("=I", raw, _MIN_RTT)
        min_rtt = min_rtt_us / 1e6 if min_rtt_us != 0xFFFFFFFF else None
    return TcpInfo(rtt_us / 1e6, rttvar_us / 1e6, min_rtt, last_ack_recv_ms / 1e3)
