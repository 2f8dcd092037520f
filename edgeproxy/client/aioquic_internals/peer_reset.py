"""The last word of a peer that has lost a connection: a stateless reset (RFC 9000 section 10.3).

aioquic keeps the tokens that its peer hands out, and drops the datagrams that show one as it drops all that it cannot
decrypt. So a client of a server that was killed and started again would ask on until it gives up.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Any

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from aioquic.quic.packet import STATELESS_RESET_TOKEN_SIZE, QuicErrorCode, QuicFrameType

from edgeproxy.client.aioquic_internals.frames import CountedQuic

LEAST_RESET = 5 + STATELESS_RESET_TOKEN_SIZE
"""Octets: 38 bits that look random go before the token (section 10.3)."""


class ResettableQuic(CountedQuic):
    """A QUIC connection that ends when the peer shows that it knows nothing of it any more."""

    def __init__(self, configuration: QuicConfiguration, **roles: Any) -> None:
        super().__init__(configuration=configuration, **roles)
        self.reset_by_peer = False
        """By a stateless reset."""

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        super().receive_datagram(data, addr, now)
        # A packet that was decrypted has at least one frame (section 12.4): what brought none may be a reset.
        if not self.frames and self._close_event is None and self._shows_reset_token(data):
            self.reset_by_peer = True
            self._close_event = ConnectionTerminated(
                error_code=QuicErrorCode.NO_ERROR,
                frame_type=QuicFrameType.PADDING,
                reason_phrase="the peer knows nothing of it any more (stateless reset)",
            )
            self._close_begin(is_initiator=False, now=now)

    def _shows_reset_token(self, data: bytes) -> bool:
        """Whether `data` ends with the token of a connection ID that is in use; in a time that tells nothing of it."""
        if len(data) < LEAST_RESET:
            return False
        shown = data[-STATELESS_RESET_TOKEN_SIZE:]
        used = (self._peer_cid, *(path.peer_cid for path in self._network_paths if path.peer_cid is not None))
        return sum(compare_digest(shown, cid.stateless_reset_token) for cid in used) > 0

    @property
    def probed(self) -> bool:
        """Something had to be sent again, since nothing came from the peer."""
        return self._loss._pto_count > 0

    def untouched(self, stream_id: int) -> bool:
        """The peer has acknowledged nothing that was sent on the stream."""
        stream = self._streams.get(stream_id)
        return stream is not None and not (stream.sender._buffer_start or len(stream.sender._acked))
