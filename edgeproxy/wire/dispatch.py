"""What a fresh TCP connection speaks: told by ALPN (RFC 7301), or by its first bytes on a plain port."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import cast

from edgeproxy.wire.h1 import H1Connection
from edgeproxy.wire.h2 import H2Connection
from edgeproxy.wire.service import Service

H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PROTOCOLS: Mapping[str, Callable[[Service, Callable[[], None]], H1Connection | H2Connection]] = {
    "h2": H2Connection,
    "http/1.1": H1Connection,
}
"""ALPN identifier -> connection, best first. A preface without an entry for `h2` is answered 505 by HTTP/1.1."""


class Dispatch(asyncio.Protocol):
    """Stands for a connection until its protocol is known, then hands it over with what has been read."""

    def __init__(self, service: Service, lost: Callable[[], None]) -> None:
        self._service = service
        self._lost = lost
        self._transport: asyncio.Transport
        self._read = b""
        self._deadline = inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._service.connections.add(self)
        self._deadline = time.monotonic() + self._service.limits.first_byte_s
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:
            self._become(tls.selected_alpn_protocol())
        elif self._service.draining:
            self.drain()

    def data_received(self, data: bytes) -> None:
        self._read += data
        if self._read.startswith(H2_PREFACE):
            self._become("h2")
        elif not H2_PREFACE.startswith(self._read):
            self._become("http/1.1")

    def connection_lost(self, error: Exception | None) -> None:
        self._service.connections.discard(self)
        self._lost()

    def sweep(self, now: float) -> None:
        if now >= self._deadline:
            self._transport.abort()

    def drain(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._service.limits.late_request_s)

    def abort(self) -> None:
        self._transport.abort()

    def _become(self, name: str | None) -> None:
        protocol = PROTOCOLS.get(name or "http/1.1", H1Connection)(self._service, self._lost)
        self._service.connections.discard(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if self._service.draining:
            protocol.drain()
        if self._read:
            protocol.data_received(self._read)
