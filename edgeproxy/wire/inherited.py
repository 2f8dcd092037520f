"""Sockets that the process was started with, as systemd's socket activation hands them over (sd_listen_fds(3)).

Whoever holds them keeps them open while one proxy ends and the next begins: connections wait in the kernel's queue
meanwhile, and none is refused.
"""

from __future__ import annotations

import socket
from collections.abc import MutableMapping

from edgeproxy.config import Address

_FIRST = 3


class Inherited:
    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str], pid: int) -> Inherited:
        """The variables count for the process `pid` alone, and are removed: children would take them for theirs."""
        meant, count = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
        environment.pop("LISTEN_FDNAMES", None)
        if meant != str(pid) or not count.isdigit():
            return cls([])
        sockets = [socket.socket(fileno=number) for number in range(_FIRST, _FIRST + int(count))]
        for sock in sockets:
            sock.set_inheritable(False)
        return cls(sockets)

    def take(self, address: Address, kind: socket.SocketKind) -> socket.socket | None:
        """The socket of this kind that is bound to the address, owned by the caller from now on."""
        names = {item[4][:2] for item in socket.getaddrinfo(address.host, address.port, type=kind)}
        for sock in self._sockets:
            if sock.type == kind and sock.getsockname()[:2] in names:
                self._sockets.remove(sock)
                return sock
        return None

    def close(self) -> list[str]:
        """Closes those that nobody took, and tells which: connections to them would wait for ever."""
        left = [f"{host}:{port}" for host, port in (sock.getsockname()[:2] for sock in self._sockets)]
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        return left
