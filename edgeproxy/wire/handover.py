"""Two processes on one UDP socket: the elder reads it, and passes on what is for the next one.

If both read, each would get datagrams at random. So one does: the elder, which alone knows the connection ids of its
connections. Once it takes no new ones, whatever is for none of them goes to its successor over a Unix socket, behind
the client's address; answers leave by the UDP socket itself, which both hold. When the elder has ended, the successor
reads. (Envoy's hot restart steers likewise.)

They find each other by a name made of the UDP socket's inode, so that only processes which hold the very same socket
meet. It is in Linux's abstract namespace, where a name is gone with its process; elsewhere nobody is found.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from edgeproxy.client.any_quic import Address

_log = logging.getLogger(__name__)

SUPPORTED = sys.platform == "linux"
PATIENCE_S = 5.0
_GREETING = b"\0"
_HEAD = struct.Struct("!BHII")
"""Length of the host's name, port, IPv6 flow and scope; then the host, then the datagram."""
_LONGEST = 0x10000 + _HEAD.size + 255
_PER_TURN = 32
"""Datagrams taken from the elder before all others have had their turn."""


class Handover:
    """One process's place in the line of those that share a socket."""

    def __init__(
        self, sock: socket.socket, deliver: Callable[[bytes, Address], None], inherit: Callable[[], None]
    ) -> None:
        """`deliver` takes a datagram that the elder passes on; `inherit` is called once the elder has ended.

        `sock` stays the caller's. To be made on the running event loop.
        """
        self._loop = asyncio.get_running_loop()
        self._name = f"\0edgeproxy-h3-{os.fstat(sock.fileno()).st_ino}"
        self._deliver = deliver
        self._inherit = inherit
        self._elder: socket.socket | None = None
        self._door: socket.socket | None = None
        """Where the next process knocks."""
        self._successor: socket.socket | None = None
        self._without_elder = asyncio.Event()

    async def join(self) -> bool:
        """True where an elder reads the socket: this process must not before `inherit`. Raises OSError where the elder
        does not answer."""
        if not SUPPORTED:
            return False
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if await self._knock():
                        return True
                    if self._elder is None and self._open_door():
                        self._without_elder.set()
                        return False
                    await asyncio.sleep(0.01)  # somebody else is just joining, or the elder ending
        except TimeoutError:
            text = "the process that serves the same UDP socket does not answer"
            raise OSError(errno.ETIMEDOUT, text) from None

    @property
    def succeeded(self) -> bool:
        """There is a next process, to which `pass_on` leads."""
        return self._successor is not None

    def pass_on(self, data: bytes, address: Address) -> bool:
        """False where nobody comes next. What the next one has no room for is lost, as the network loses some."""
        if self._successor is None:
            return False
        try:
            self._successor.send(packed(data, address))
        except OSError as error:  # if it is gone, its socket says so to `_from_successor`
            _log.debug("a datagram for the next process is lost: %s", error)
        return True

    async def without_elder(self) -> None:
        """Return when there is none: what it passes on for our successor comes this way."""
        await self._without_elder.wait()

    def close(self) -> None:
        """To be called when this process reads the socket no more."""
        for sock in (self._elder, self._door, self._successor):
            if sock is not None:
                self._hang_up(sock)
        self._elder = self._door = self._successor = None
        self._without_elder.set()

    # ---- towards the elder

    async def _knock(self) -> bool:
        elder = _unix_socket()
        try:
            elder.connect(self._name)
            greeted = await self._loop.sock_recv(elder, len(_GREETING)) == _GREETING and _is_ours(elder)
        except OSError:
            greeted = False
        except BaseException:
            elder.close()
            raise
        if not greeted:
            elder.close()
            return False
        self._elder = elder
        self._open_door()
        self._loop.add_reader(elder, self._from_elder, elder)
        return True

    def _from_elder(self, elder: socket.socket) -> None:
        for _ in range(_PER_TURN):
            if self._elder is not elder:  # closed by what was delivered
                return
            message = _received(elder)
            if message is None:
                return
            if not message:
                self._hang_up(elder)
                self._elder = None
                self._without_elder.set()
                self._inherit()
                return
            self._deliver(*unpacked(message))

    # ---- towards the successor

    def _open_door(self) -> bool:
        """False where another process has the name."""
        door = _unix_socket()
        try:
            door.bind(self._name)
            door.listen(0)
        except OSError:
            door.close()
            return False
        self._door = door
        self._loop.add_reader(door, self._let_in, door)
        return True

    def _let_in(self, door: socket.socket) -> None:
        """One process, and no second one: the next in line knocks at the successor's own door."""
        try:
            guest, _ = door.accept()
        except OSError:
            return
        self._hang_up(door)
        self._door = None
        guest.setblocking(False)
        if not _is_ours(guest):
            guest.close()
            self._open_door()
            return
        self._successor = guest
        self._loop.add_reader(guest, self._from_successor, guest)
        guest.send(_GREETING)

    def _from_successor(self, successor: socket.socket) -> None:
        if _received(successor) == b"":
            self._hang_up(successor)
            self._successor = None
            self._open_door()

    def _hang_up(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        sock.close()


class SendOnly(asyncio.DatagramTransport):
    """Of a socket that another process reads. What the kernel has no room for is lost, as the network loses some."""

    def __init__(self, sock: socket.socket) -> None:
        """`sock`: closed with the transport."""
        super().__init__({"sockname": sock.getsockname(), "socket": sock})
        self._sock = sock
        self._closing = False

    def sendto(self, data: Any, addr: Any = None) -> None:
        try:
            self._sock.sendto(data, addr)
        except OSError as error:
            _log.debug("UDP socket: %s", error)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self._sock.close()

    abort = close


def packed(data: bytes, address: Address) -> bytes:
    """A datagram and whose it is. `address`: as sockets tell it, of two items for IPv4, of four for IPv6."""
    host: bytes = address[0].encode()
    flow, scope = address[2:] or (0, 0)
    return _HEAD.pack(len(host), address[1], flow, scope) + host + data


def unpacked(message: bytes) -> tuple[bytes, Address]:
    size, port, flow, scope = _HEAD.unpack_from(message)
    end = _HEAD.size + size
    host = message[_HEAD.size : end].decode()
    return message[end:], (host, port, flow, scope) if ":" in host else (host, port)


def _unix_socket() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.setblocking(False)
    return sock


def _received(sock: socket.socket) -> bytes | None:
    """One message; empty at the end, None where none has come."""
    try:
        return sock.recv(_LONGEST)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _is_ours(sock: socket.socket) -> bool:
    """The other end is a process of the same user: any user may take a name."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())
