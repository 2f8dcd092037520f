"""Takes HTTP/3's connections on qh3; imported only where it was chosen, for it comes with the extra `[fast]`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from qh3._hazmat import CryptoError
from qh3.quic.configuration import QuicConfiguration

from edgeproxy.client.any_quic import AnyQuic
from edgeproxy.wire.qh3_internals.quic import Quic
from edgeproxy.wire.tickets import Tickets

INITIAL_RTT_S = 0.1
"""As aioquic has it: with RFC 9002's 0.333 a handshake waits three times as long for a datagram that was lost."""


@dataclass(frozen=True, slots=True)
class Qh3Server:
    configuration: QuicConfiguration

    @classmethod
    def of(cls, options: Mapping[str, Any], certificate: Path, key: Path) -> Qh3Server:
        """Raises OSError, ValueError and TypeError for a certificate or key that cannot be used."""
        configuration = QuicConfiguration(
            max_datagram_size=SMALLEST_MAX_DATAGRAM_SIZE, initial_rtt=INITIAL_RTT_S, **options
        )
        try:
            configuration.load_cert_chain(certificate, key)
        except (CryptoError, LookupError) as error:
            raise ValueError(str(error)) from error
        return cls(configuration)

    @property
    def connection_id_length(self) -> int:
        return int(self.configuration.connection_id_length)

    @property
    def supported_versions(self) -> Sequence[int]:
        return list(self.configuration.supported_versions)

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
