"""The listeners of one proxy: they come up together, tell of HTTP/3 while it is there, and drain in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from pathlib import Path
from ssl import SSLContext

from edgeproxy.config import Address, Listen, QuicLibrary
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.observe.quic import QuicCounts
from edgeproxy.wire.certificates import Certificates
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.inherited import Inherited
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.resets import kept_secret
from edgeproxy.wire.tcp import TcpListener

HURRIED_S = 0.5
"""How long answers in progress may take to end after Ctrl-C."""
ALT_SVC_S = 300
"""How long a client may remember that HTTP/3 is here: short, so that a withdrawn listener is soon forgotten."""
QLOG = "qlog"
RESET_KEY = "quic-reset.key"
_CLEAR = b"clear"


class StartError(RuntimeError):
    """The proxy cannot start; the message names the thing, the cause and the remedy."""


class Listeners:
    def __init__(
        self,
        limits: Limits,
        inherited: Inherited,
        state: Path | None = None,
        counts: Counter[str] | None = None,
        quic_counts: QuicCounts | None = None,
        quic: QuicLibrary = "aioquic",
    ) -> None:
        """`state`: a folder. While there is one named `qlog` in it, HTTP/3's connections are written there; and it
        keeps what the next process needs to tell their clients that this one has crashed. `counts`: of TCP connections,
        by what became of them. `quic`: what HTTP/3 runs on."""
        self._state = state
        self._library = quic
        self._quic_counts = QuicCounts() if quic_counts is None else quic_counts
        self._counts = Counter[str]() if counts is None else counts
        self._limits = limits
        self._inherited = inherited
        self._public: list[TcpListener | QuicListener] = []
        self._admin: list[TcpListener | QuicListener] = []
        self._quic: QuicListener | None = None
        self._withdrawn = False

    async def start(self, listen: Listen, public: AsgiApp, admin: AsgiApp, certificates: Certificates | None) -> None:
        """`certificates`: wherever `listen.https` is. Raises StartError and TlsError."""
        if listen.https is not None and certificates is not None:
            tcp = await self._tcp(public, listen.https, self._public, certificates.context)
            certificate, key = certificates.files
            self._quic = QuicListener(
                public,
                self._limits,
                certificate=certificate,
                key=key,
                state={},
                qlog=None if self._state is None else self._state / QLOG,
                reset_secret=None if self._state is None else kept_secret(self._state / RESET_KEY),
                counts=self._quic_counts,
                library=self._library,
                alt_svc=self._clear,  # who has come this way need not be told of it
            )
            await self._bind(self._quic, listen.https, socket.SOCK_DGRAM)
            self._public.append(self._quic)
            certificates.serve(tcp, self._quic)
        if listen.http is not None:
            await self._tcp(public, listen.http, self._public)
        if listen.admin is not None:
            await self._tcp(admin, listen.admin, self._admin)
        unused = self._inherited.close()
        if unused:
            raise StartError(
                f"was handed sockets for {', '.join(unused)}, which regions.yaml does not listen on; "
                "make `listen:` and the socket unit name the same addresses"
            )

    def alt_svc(self) -> bytes | None:
        """What TLS clients are told of HTTP/3 (RFC 7838): only what is true at the moment."""
        if self._quic is None:
            return None
        return self._clear() or b'h3=":%d"; ma=%d' % (self._quic.port, ALT_SVC_S)

    def _clear(self) -> bytes | None:
        """Where HTTP/3 is gone, or about to be, and no other process goes on with it."""
        here = self._quic is not None and (self._quic.succeeded or (self._quic.healthy and not self._withdrawn))
        return None if here else _CLEAR

    def withdraw(self) -> None:
        """Tell clients to come over TCP from now on."""
        self._withdrawn = True

    async def drain(self, timeout_s: float, hurry: asyncio.Event) -> None:
        """Let answers in progress end, for `timeout_s` or until `hurry`. The operator's listener goes last."""
        self.withdraw()
        drains = asyncio.ensure_future(self._drain_in_order(timeout_s))
        hurried = asyncio.create_task(hurry.wait())
        await asyncio.wait((drains, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not drains.done():
            await asyncio.wait((drains,), timeout=HURRIED_S)
        hurried.cancel()
        for listener in (*self._public, *self._admin):
            listener.close()
        drains.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drains

    async def _drain_in_order(self, timeout_s: float) -> None:
        await asyncio.gather(*(listener.drain(timeout_s) for listener in self._public))
        await asyncio.gather(*(listener.drain(HURRIED_S) for listener in self._admin))

    async def _tcp(
        self,
        app: AsgiApp,
        address: Address,
        among: list[TcpListener | QuicListener],
        context: SSLContext | None = None,
    ) -> TcpListener:
        listener = TcpListener(app, self._limits, ssl=context, alt_svc=self.alt_svc, state={}, counts=self._counts)
        await self._bind(listener, address, socket.SOCK_STREAM)
        among.append(listener)
        return listener

    async def _bind(self, listener: TcpListener | QuicListener, address: Address, kind: socket.SocketKind) -> None:
        try:
            await listener.start(self._inherited.take(address, kind) or address)
        except OSError as error:
            transport = "TCP" if kind == socket.SOCK_STREAM else "UDP"
            raise StartError(
                f"cannot listen on {address} ({transport}): {error.strerror or error}; "
                "stop what listens there, or give another address under `listen:` in regions.yaml"
            ) from error
