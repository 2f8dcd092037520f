"""What became of QUIC connections: counted by the wire on plain integers, told at a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from edgeproxy.observe.known import with_zeros

HANDSHAKES: Final = (
    "completed", "timed_out", "failed", "closed_by_peer", "cut", "unreadable",
    "refused_half_open", "refused_limit", "refused_draining", "unknown_version",
)  # fmt: skip
SIDES: Final = ("us", "peer", "silence")
"""Who ended a connection; the last: it timed out."""
ERRORS: Final = (
    # RFC 9000 section 20.1
    "NO_ERROR", "INTERNAL_ERROR", "CONNECTION_REFUSED", "FLOW_CONTROL_ERROR", "STREAM_LIMIT_ERROR",
    "STREAM_STATE_ERROR", "FINAL_SIZE_ERROR", "FRAME_ENCODING_ERROR", "TRANSPORT_PARAMETER_ERROR",
    "CONNECTION_ID_LIMIT_ERROR", "PROTOCOL_VIOLATION", "INVALID_TOKEN", "APPLICATION_ERROR",
    "CRYPTO_BUFFER_EXCEEDED", "KEY_UPDATE_ERROR", "AEAD_LIMIT_REACHED", "NO_VIABLE_PATH", "VERSION_NEGOTIATION_ERROR",
    "CRYPTO_ERROR",
    # RFC 9114 section 8.1, RFC 9204 section 6, RFC 9297 section 5.2
    "H3_NO_ERROR", "H3_GENERAL_PROTOCOL_ERROR", "H3_INTERNAL_ERROR", "H3_STREAM_CREATION_ERROR",
    "H3_CLOSED_CRITICAL_STREAM", "H3_FRAME_UNEXPECTED", "H3_FRAME_ERROR", "H3_EXCESSIVE_LOAD", "H3_ID_ERROR",
    "H3_SETTINGS_ERROR", "H3_MISSING_SETTINGS", "H3_REQUEST_REJECTED", "H3_REQUEST_CANCELLED", "H3_REQUEST_INCOMPLETE",
    "H3_MESSAGE_ERROR", "H3_CONNECT_ERROR", "H3_VERSION_FALLBACK", "H3_DATAGRAM_ERROR", "QPACK_DECOMPRESSION_FAILED",
    "QPACK_ENCODER_STREAM_ERROR", "QPACK_DECODER_STREAM_ERROR",
)  # fmt: skip
OTHER: Final = "other"
"""A peer may close with any number: those without a name are one."""


class QuicCounts:
    """Of one process."""

    def __init__(self) -> None:
        self.handshakes = Counter[str]()
        """By what became of them: HANDSHAKES."""
        self.ended = Counter[tuple[str, str]]()
        """Connections by who ended them, of SIDES, and the error's name, of ERRORS and OTHER."""
        self.retries = 0
        self.resets = 0
        self.migrations = 0
        self.lost = 0
        """Packets of ours."""
        self.open: Callable[[], int] = lambda: 0
        """Connections at the moment, those in their handshake included."""


def quic_families(counts: QuicCounts) -> Iterator[Metric]:
    """All of them from the start, at 0."""
    yield GaugeMetricFamily("edgeproxy_quic_connections", "QUIC connections that are open", counts.open())
    handshakes = CounterMetricFamily(
        "edgeproxy_quic_handshakes", "QUIC handshakes, by what became of them", labels=["outcome"]
    )
    for outcome, count in with_zeros(counts.handshakes, HANDSHAKES).items():
        handshakes.add_metric([outcome], count)
    closes = CounterMetricFamily(
        "edgeproxy_quic_closes", "QUIC connections that ended, by who ended them and why", labels=["by", "error"]
    )
    zeros = (*product(("us", "peer"), ERRORS), ("us", OTHER), ("peer", OTHER), ("silence", "NO_ERROR"))
    for labels, count in with_zeros(counts.ended, zeros).items():
        closes.add_metric(labels, count)
    yield from (handshakes, closes)
    yield CounterMetricFamily(
        "edgeproxy_quic_retries", "Newcomers that had to prove their address first", counts.retries
    )
    yield CounterMetricFamily(
        "edgeproxy_quic_stateless_resets", "Sent for datagrams of connections that are unknown here", counts.resets
    )
    yield CounterMetricFamily(
        "edgeproxy_quic_migrations", "Times that a client went on from another address", counts.migrations
    )
    yield CounterMetricFamily("edgeproxy_quic_packets_lost", "Packets to clients that were lost", counts.lost)
