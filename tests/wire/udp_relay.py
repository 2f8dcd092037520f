"""A UDP relay that does to datagrams what networks do: loses, reorders, repeats, damages and swallows them.

Everything is drawn from a seed. Reordering and repetition need no time: a datagram that is held back leaves after the
next one of its direction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

Address = tuple[Any, ...]


@dataclass(frozen=True)
class Faults:
    """Probabilities, per datagram and direction."""

    lose: float = 0.0
    swap: float = 0.0
    """Held back until the next one has passed."""
    repeat: float = 0.0
    corrupt: float = 0.0
    """One octet is changed."""


@dataclass
class Counts:
    passed: int = 0
    lost: int = 0
    swapped: int = 0
    repeated: int = 0
    corrupted: int = 0


class _Side(asyncio.DatagramProtocol):
    def __init__(self, received: Callable[[bytes, Address], None]) -> None:
        self._received = received
        self.transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes | str, address: Address) -> None:
        assert isinstance(data, bytes)
        self._received(data, address)

    def error_received(self, error: Exception) -> None:
        """The other end is gone: a network says nothing of that."""


class UdpRelay:
    """Between one client and the server on `port` of 127.0.0.1. `faults` may be changed at any time."""

    def __init__(self, port: int, seed: int, faults: Faults) -> None:
        self.faults = faults
        self.dark = False
        """Nothing passes in either direction."""
        self.counts = Counts()
        self._target = ("127.0.0.1", port)
        self._rng = random.Random(seed)
        self._held: dict[bool, bytes | None] = {True: None, False: None}
        self._client: Address | None = None
        self._inside = _Side(self._from_client)
        self._outside: list[_Side] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: self._inside, local_addr=("127.0.0.1", 0))
        await self.rebind()

    @property
    def port(self) -> int:
        assert self._inside.transport is not None
        return int(self._inside.transport.get_extra_info("sockname")[1])

    async def rebind(self) -> None:
        """The NAT forgets the client and gives it a new port, as they do after some minutes."""
        side = _Side(self._from_server)
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: side, remote_addr=self._target)
        for old in self._outside:
            if old.transport is not None:
                old.transport.close()
        self._outside = [side]

    def close(self) -> None:
        for side in (self._inside, *self._outside):
            if side.transport is not None:
                side.transport.close()

    def _from_client(self, data: bytes, address: Address) -> None:
        self._client = address
        self._pass(data, True)

    def _from_server(self, data: bytes, address: Address) -> None:
        self._pass(data, False)

    def _pass(self, data: bytes, inward: bool) -> None:
        faults, draw = self.faults, self._rng.random
        if self.dark or draw() < faults.lose:
            self.counts.lost += 1
            return
        if draw() < faults.corrupt:
            self.counts.corrupted += 1
            damaged = bytearray(data)
            damaged[self._rng.randrange(len(damaged))] ^= 1 << self._rng.randrange(8)
            data = bytes(damaged)
        held, self._held[inward] = self._held[inward], None
        if held is None and draw() < faults.swap:
            self.counts.swapped += 1
            self._held[inward] = data
            return
        self._emit(data, inward)
        if held is not None:
            self._emit(held, inward)
        if draw() < faults.repeat:
            self.counts.repeated += 1
            self._emit(data, inward)

    def _emit(self, data: bytes, inward: bool) -> None:
        self.counts.passed += 1
        outside = self._outside[-1].transport
        if inward:
            if outside is not None:
                outside.sendto(data)
        elif self._client is not None and self._inside.transport is not None:
            self._inside.transport.sendto(data, self._client)
