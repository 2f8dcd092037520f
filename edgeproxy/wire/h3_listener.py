"""The UDP listener: HTTP/3 sessions on one socket, one sweep for all deadlines, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aioquic.h3.connection import ErrorCode

from edgeproxy.client.any_quic import AnyQuic
from edgeproxy.config import Address, QuicLibrary
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.wire.h3 import Session
from edgeproxy.wire.handover import SUPPORTED, Handover, SendOnly
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.qlog import Qlog
from edgeproxy.wire.quic import Endpoint
from edgeproxy.wire.quic_connection import Home
from edgeproxy.wire.quic_servers import quic_server
from edgeproxy.wire.resets import SECRET_BYTES, Resets
from edgeproxy.wire.service import App, Service
from edgeproxy.wire.tickets import Tickets
from edgeproxy.wire.udp import udp_socket

_log = logging.getLogger(__name__)

SWEEP_S = 1.0
UNWIND_S = 1.0
"""How long answers that a drain cuts off may take to say so."""


class QuicListener:
    """Serves `app` over HTTP/3 on one UDP address."""

    def __init__(
        self,
        app: App,
        limits: Limits,
        *,
        certificate: Path,
        key: Path,
        state: dict[str, Any],
        qlog: Path | None = None,
        alt_svc: Callable[[], bytes | None] | None = None,
        reset_secret: bytes | None = None,
        counts: QuicCounts | None = None,
        library: QuicLibrary = "aioquic",
    ) -> None:
        """`alt_svc`: asked for each response's header.
        `qlog`: a folder, while whose existence what happens on connections is written there.
        `reset_secret`: the same for all processes that serve this socket, at a time or one after the other: the next
        one can then tell clients that their connections are gone. By default nobody else has it.

        Raises TlsError for a certificate or key that cannot be used, and ModuleNotFoundError without the library.
        """
        self._app = app
        self._limits = limits
        self._state = state
        self._alt_svc = alt_svc
        self._secret = reset_secret or secrets.token_bytes(SECRET_BYTES)
        self._counts = QuicCounts() if counts is None else counts
        self._qlog = None if qlog is None else Qlog(qlog)
        self._library = library
        self._server = quic_server(library, limits, certificate, key, self._qlog)
        self._service: Service | None = None
        self._endpoint: Endpoint | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._handover: Handover | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, where: socket.socket | Address) -> None:
        """Serve on an address (port 0: the kernel chooses) or on a bound socket, taken over here. Another process may
        have the same socket: then it goes on reading until it ends, and passes on what is for us. Raises OSError."""
        # The library warns of every protocol error of a peer: lines that a peer could multiply.
        logging.getLogger("quic").setLevel(logging.ERROR)
        service = Service(self._app, self._limits, scheme="https", state=self._state, alt_svc=self._alt_svc)

        def session(quic: AnyQuic, endpoint: Home, host: str, now: float) -> Session:
            return Session(service, quic, endpoint, host, now)

        sock = udp_socket(where)
        inherited = isinstance(where, socket.socket)
        resets = None
        if SUPPORTED or not inherited:  # else another process may read the socket beside us, and have connections
            resets = Resets(self._secret, sock.getsockname(), self._limits, time.monotonic())
        tickets = Tickets(self._limits.tickets)
        endpoint = Endpoint(self._server, self._limits, session, tickets, resets, self._counts)
        try:
            if inherited and await self._has_elder(sock, endpoint):
                endpoint.connection_made(SendOnly(sock))
            else:
                await _read(sock, endpoint)
        except BaseException:
            if self._handover is not None:
                self._handover.close()
            sock.close()
            raise
        self._service, self._endpoint = service, endpoint
        self._counts.open = lambda: self.connections
        self._sweep()

    async def _has_elder(self, sock: socket.socket, endpoint: Endpoint) -> bool:
        loop = asyncio.get_running_loop()

        def inherit() -> None:
            self._reading = loop.create_task(_read(sock, endpoint))

        self._handover = Handover(sock, endpoint.datagram_received, inherit)
        endpoint.pass_on = self._handover.pass_on
        return await self._handover.join()

    @property
    def port(self) -> int:
        assert self._endpoint is not None, "the listener is not started"
        return int(self._endpoint.address[1])

    @property
    def connections(self) -> int:
        """Open connections, those in their handshake included."""
        return len(self._endpoint.open) if self._endpoint is not None else 0

    @property
    def healthy(self) -> bool:
        """New connections are taken: what Alt-Svc promises."""
        return self._endpoint is not None and self._endpoint.alive and not self._endpoint.refusing

    @property
    def succeeded(self) -> bool:
        """Another process has the same socket and takes connections when this one does not any more."""
        return self._handover is not None and self._handover.succeeded

    def use(self, certificate: Path, key: Path) -> None:
        """For the handshakes from now on; connections that exist go on. Raises TlsError and changes nothing then."""
        self._server = quic_server(self._library, self._limits, certificate, key, self._qlog)
        if self._endpoint is not None:
            self._endpoint.server = self._server

    async def drain(self, timeout_s: float) -> None:
        """Take no new connection, let the requests in progress end, then close; after `timeout_s` close at once."""
        if self._endpoint is None or self._service is None:
            return
        self._endpoint.refusing = True
        for connection in list(self._endpoint.open):
            connection.drain()
        try:
            async with asyncio.timeout(timeout_s):
                await self._endpoint.empty()
                if self._handover is not None and self._handover.succeeded:
                    await self._handover.without_elder()
        except TimeoutError:
            if self.connections:
                _log.warning("HTTP/3: %d connections were still open after %g s", self.connections, timeout_s)
            if self._service.stoppable:
                self._service.stop()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(UNWIND_S):
                        await self._endpoint.empty()
        tasks = list(self._service.tasks)
        self.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Close every connection with H3_NO_ERROR, cancel what still runs, and free the port."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._endpoint is not None and self._service is not None:
            self._endpoint.close(ErrorCode.H3_NO_ERROR)
            for task in list(self._service.tasks):
                task.cancel()
        if self._handover is not None:
            self._handover.close()

    def sweep(self, now: float) -> None:
        """End what has passed its deadline at `now` (monotonic seconds); called about once a second."""
        if self._endpoint is not None:
            self._endpoint.sweep(now)

    def _sweep(self) -> None:
        self.sweep(time.monotonic())
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


async def _read(sock: socket.socket, endpoint: Endpoint) -> None:
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: endpoint, sock=sock)
