"""A node's listener: the edge's own HTTP/1.1 (`edgeproxy.wire`) on one bound socket; little for a start to load."""

from __future__ import annotations

import asyncio
import socket
import time

from edgeproxy.wire.h1 import H1Connection
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import App, Service

WARM_S = 3600.0
"""Proxies keep warm connections to their nodes, and ask nothing on most of them."""
LIMITS = Limits(connections=2048, first_byte_s=WARM_S, keep_alive_s=WARM_S, stalled_write_s=300.0)
"""A proxy whose client reads slowly does so too, and ends it itself."""
SWEEP_S = 1.0
UNWIND_S = 1.0
"""How long answers may go on that nobody waits for any more, and then how long applications may take to notice."""


class Listener:
    """Answers from `start` on. While nobody is connected it costs nothing, not even a timer."""

    def __init__(self, app: App, limits: Limits = LIMITS) -> None:
        self._service = Service(app, limits, scheme="http", state={}, alt_svc=None)
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, bound: socket.socket) -> None:
        """The socket is owned here from now on."""
        self._server = await self._service.loop.create_server(self._connection, sock=bound)

    @property
    def sweeps(self) -> bool:
        """Deadlines are looked at: somebody is connected, or was a moment ago."""
        return self._timer is not None

    async def close(self) -> None:
        """Takes nobody new; what still runs is cut off after UNWIND_S. No connection and no task remains."""
        service = self._service
        if self._server is not None:
            self._server.close()
        service.draining = True
        for connection in tuple(service.connections):
            connection.drain()
        if service.tasks:
            await asyncio.wait(tuple(service.tasks), timeout=UNWIND_S)
        for connection in tuple(service.connections):
            connection.abort()
        if service.tasks:
            await asyncio.wait(tuple(service.tasks), timeout=UNWIND_S)
        for task in tuple(service.tasks):
            task.cancel()
        if service.tasks:
            await asyncio.wait(tuple(service.tasks))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _connection(self) -> asyncio.Protocol:
        service = self._service
        if len(service.connections) >= service.limits.connections:
            return _TurnedAway()
        if self._timer is None:
            self._timer = service.loop.call_later(SWEEP_S, self._sweep)
        return H1Connection(service, _nothing)

    def _sweep(self) -> None:
        now = time.monotonic()
        for connection in tuple(self._service.connections):
            connection.sweep(now)
        self._timer = self._service.loop.call_later(SWEEP_S, self._sweep) if self._service.connections else None


class _TurnedAway(asyncio.Protocol):
    """One connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _nothing() -> None:
    """Nobody counts a node's connections."""
