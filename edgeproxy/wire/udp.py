"""The UDP socket under a listener of HTTP/3."""

from __future__ import annotations

import logging
import socket

from edgeproxy import config
from edgeproxy.wire.limits import MIB

_log = logging.getLogger(__name__)

SOCKET_BUFFER_BYTES = 4 * MIB


def udp_socket(where: socket.socket | config.Address) -> socket.socket:
    """A bound, non-blocking socket with room for bursts. Raises OSError where the address cannot be bound."""
    sock = where if isinstance(where, socket.socket) else _bound(where)
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
    granted = [sock.getsockopt(socket.SOL_SOCKET, option) // 2 for option in (socket.SO_RCVBUF, socket.SO_SNDBUF)]
    if min(granted) < SOCKET_BUFFER_BYTES:
        _log.info(
            "UDP socket: the kernel granted %d bytes to receive and %d to send of %d asked for; "
            "raise net.core.rmem_max and net.core.wmem_max to lose fewer datagrams in bursts",
            *granted,
            SOCKET_BUFFER_BYTES,
        )
    return sock


def _bound(where: config.Address) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_DGRAM)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock
