"""How a connection begins: where the library decides alone what the project decides itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qh3 import tls
from qh3._hazmat import Buffer, QuicConnectionCore
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection
from qh3.quic.packet import pull_quic_transport_parameters, push_quic_transport_parameters
from qh3.quic.tls_bridge import QuicTlsBridge, QuicTlsBridgeError

from edgeproxy.client.any_quic import Address

UNI_STREAMS: Final = 8
"""Unidirectional streams open to the peer: control, two for QPACK, and some of types that we ignore."""
ACTIVE_IDS: Final = 8
"""Connection ids that the peer may give us at a time."""
_ACK_DELAY_EXPONENT, _MAX_ACK_DELAY_S = 3, 0.025
_NO_APPLICATION_PROTOCOL = 0x100 + 120
"""RFC 9001 section 8.1; the library says handshake_failure."""
_NO_LIMIT_YET = 0
"""Of what we may send: the peer's parameters come with the handshake."""


class _Bridge(QuicTlsBridge):
    """The TLS side, which tells the peer how many streams it may open: the library would always say 100 and 103."""

    def __init__(self, *arguments: Any, streams: int, **roles: Any) -> None:
        self._streams = streams
        super().__init__(*arguments, **roles)

    def serialize_transport_parameters(self) -> bytes:
        parameters = pull_quic_transport_parameters(Buffer(data=super().serialize_transport_parameters()))
        parameters.initial_max_streams_bidi, parameters.initial_max_streams_uni = self._streams, UNI_STREAMS
        buffer = Buffer(capacity=3 * self.configuration.max_datagram_size)
        push_quic_transport_parameters(buffer, parameters)
        return bytes(buffer.data)


class Beginning(QuicConnection):
    """A connection of the library, made with the project's limits."""

    _core: QuicConnectionCore | None

    def __init__(
        self,
        configuration: QuicConfiguration,
        *,
        streams: int,
        reset_token: Callable[[bytes], bytes] | None = None,
        **roles: Any,
    ) -> None:
        super().__init__(configuration=configuration, **roles)
        self._streams = streams
        self._reset_token = None if reset_token is None else reset_token(self.host_cid)

    def _create_core(self, remote_addr: Address, initial_dcid: bytes, now: float) -> None:
        configuration = self._configuration
        assert self._version is not None
        self._core = QuicConnectionCore(
            is_client=False,
            version=self._version,
            local_addr=("0.0.0.0", 0),
            remote_addr=remote_addr,
            source_cid=self.host_cid,
            destination_cid=initial_dcid,
            # It would count less than what came, and raise an error where it may not send: see `datagrams_to_send`.
            peer_address_validated=True,
            active_connection_id_limit=ACTIVE_IDS,
            max_datagram_size=configuration.max_datagram_size,
            probe_datagram_size=False,
            idle_timeout=configuration.idle_timeout,
            ack_delay_exponent=_ACK_DELAY_EXPONENT,
            max_datagram_frame_size=None,
            peer_max_datagram_frame_size=None,
            connection_receive_window=configuration.max_data // 2,
            connection_send_limit=_NO_LIMIT_YET,
            stream_receive_window=configuration.max_stream_data,
            stream_send_limit_bidi_local=_NO_LIMIT_YET,
            stream_send_limit_bidi_remote=_NO_LIMIT_YET,
            stream_send_limit_uni=_NO_LIMIT_YET,
            max_stream_reassembly=configuration.max_stream_data,
            local_max_streams_bidi=self._streams,
            local_max_streams_uni=UNI_STREAMS,
            peer_max_streams_bidi=_NO_LIMIT_YET,
            peer_max_streams_uni=_NO_LIMIT_YET,
            initial_rtt=configuration.initial_rtt,
            max_ack_delay=_MAX_ACK_DELAY_S,
            initial_time=now,
        )
        self._applied_transport_parameters = None
        self._pre_handshake_state_replayed = False

    def _create_tls(self, remote_source_cid: bytes | None) -> QuicTlsBridge:
        self._tls = _Bridge(
            self._configuration,
            streams=self._streams,
            version=self._version,
            local_initial_source_connection_id=self.host_cid,
            remote_initial_source_connection_id=remote_source_cid,
            original_destination_connection_id=self._original_destination_connection_id,
            retry_source_connection_id=self._retry_source_connection_id,
            stateless_reset_token=self._reset_token,
            session_ticket_fetcher=self._session_ticket_fetcher,
            session_ticket_handler=self._session_ticket_handler,
            version_change_handler=self._set_version,
        )
        return self._tls

    def _normalize_address(self, addr: Address) -> Address:
        return (addr[0].partition("%")[0], *addr[1:])  # the core has link-local scopes as numbers only

    def _shake_hands(self, epoch: int, offset: int, data: bytes) -> None:
        """A piece of TLS's own messages."""
        assert self._core is not None
        assert self._tls is not None
        try:
            self._tls.receive_crypto(tls.Epoch(epoch), data, offset, version=self._core.version)
            self._drain_tls()
        except QuicTlsBridgeError as error:
            code = _NO_APPLICATION_PROTOCOL if "ALPN" in error.reason_phrase else error.error_code
            self.close(code, int(error.frame_type), error.reason_phrase)
