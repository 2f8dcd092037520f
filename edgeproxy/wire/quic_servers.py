"""The QUIC libraries that can carry HTTP/3, and what each needs to take connections: a certificate and limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aioquic.h3.connection import H3_ALPN
from aioquic.quic.configuration import QuicConfiguration

from edgeproxy.client.aioquic_internals import Quic
from edgeproxy.client.any_quic import AnyQuic
from edgeproxy.config import QuicLibrary
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.qlog import Qlog
from edgeproxy.wire.tickets import Tickets
from edgeproxy.wire.tls import TlsError

UNREAD_STREAMS = 16
"""So many times the window of a stream may wait for readers on one connection."""


class QuicServer(Protocol):
    """Makes the server's side of connections."""

    @property
    def connection_id_length(self) -> int: ...

    @property
    def supported_versions(self) -> Sequence[int]: ...

    def accept(
        self,
        *,
        streams: int,
        reset_token: Callable[[bytes], bytes] | None,
        tickets: Tickets,
        original_cid: bytes,
        retry_cid: bytes | None,
    ) -> AnyQuic:
        """`streams`: requests the peer may have open at once. `reset_token`: of a connection id that it is given.
        `original_cid`: what the client's first Initial was for. `retry_cid`: what our Retry gave it, where it had one.
        """


@dataclass(frozen=True, slots=True)
class AioquicServer:
    configuration: QuicConfiguration

    @property
    def connection_id_length(self) -> int:
        return self.configuration.connection_id_length

    @property
    def supported_versions(self) -> Sequence[int]:
        return self.configuration.supported_versions

    def accept(
        self,
        *,
        streams: int,
        reset_token: Callable[[bytes], bytes] | None,
        tickets: Tickets,
        original_cid: bytes,
        retry_cid: bytes | None,
    ) -> AnyQuic:
        return Quic(
            self.configuration,
            streams=streams,
            reset_token=reset_token,
            session_ticket_fetcher=tickets.take,
            session_ticket_handler=tickets.add,
            original_destination_connection_id=original_cid,
            retry_source_connection_id=retry_cid,
        )


def quic_server(
    library: QuicLibrary, limits: Limits, certificate: Path, key: Path, qlog: Qlog | None = None
) -> QuicServer:
    """Raises TlsError for a certificate or key that cannot be used, and ModuleNotFoundError without the library.

    `qlog`: of aioquic's connections alone."""
    options: dict[str, Any] = {
        "is_client": False,
        "alpn_protocols": H3_ALPN,
        "idle_timeout": limits.keep_alive_s,
        "max_stream_data": limits.unread_body_bytes,
        "max_data": UNREAD_STREAMS * limits.unread_body_bytes,
    }
    try:
        if library == "qh3":
            from edgeproxy.wire.qh3_internals.server import Qh3Server

            return Qh3Server.of(options, certificate, key)
        configuration = QuicConfiguration(quic_logger=qlog, **options)
        configuration.load_cert_chain(certificate, key)
    except (OSError, ValueError, TypeError) as error:
        raise TlsError(
            f"cannot use certificate {certificate} with key {key} for HTTP/3: {error}; give a PEM chain and its key"
        ) from error
    return AioquicServer(configuration)
