"""What one peer may take of the edge, shared by every listener: bytes, counts and seconds."""

from __future__ import annotations

from typing import NamedTuple

KIB = 1024
MIB = 1024 * KIB


class Limits(NamedTuple):
    """Counts are per listener unless the name says otherwise; `_s` are seconds, `_bytes` are octets."""

    target_bytes: int = 8 * KIB
    """Path and query of one request; beyond it 414."""
    head_bytes: int = 32 * KIB
    """Request line, header fields and trailers of one request, decoded; beyond it 431."""
    headers: int = 100
    """Header fields of one request, trailers included; beyond it 431."""
    body_bytes: int = 8 * MIB
    """Request body; beyond it 413."""
    unread_body_bytes: int = 64 * KIB
    """Body received ahead of the application, per request; beyond it the peer is made to wait."""
    unsent_bytes: int = 64 * KIB
    """Response queued in this process, per connection (h1) or stream (h2, h3); beyond it `send()` waits."""
    unsent_connection_bytes: int = 1 * MIB
    """The same for all streams of one h3 connection together: where there are many, each may queue less."""

    connections: int = 10_000
    connections_per_address: int = 2_000
    """Per client address (per /64 for IPv6)."""
    half_open: int = 512
    """TLS or QUIC handshakes in progress."""
    streams_per_connection: int = 128
    """Requests in progress on one h2 or h3 connection; also the cap on their application tasks."""
    pipeline_depth: int = 8
    """h1 requests waiting behind the running one; beyond it the connection is closed."""
    resets_burst: int = 100
    """Requests that one h2 or h3 connection may reset before their answer ended, at once (CVE-2023-44487)."""
    resets_per_s: float = 20.0
    """How fast that allowance grows again."""
    frames_per_turn: int = 64
    """Frames of one h2 connection, or pieces of h1 bodies on one connection, that are worked on before all others have
    had their turn."""
    datagrams_per_turn: int = 8
    """The same for the datagrams of one h3 connection; eight frames are as much as a datagram."""
    handshakes_per_turn: int = 1
    """The same for the datagrams of all QUIC handshakes together: no datagram asks for more work than the first one."""
    datagrams_waiting: int = 256
    """Datagrams of one h3 connection, or of all QUIC handshakes, that wait for their turn; what comes beyond is lost,
    as the network loses some."""
    control_burst: int = 1000
    """Frames of one h2 or QUIC connection that cost work and bring no request further (PING, SETTINGS, WINDOW_UPDATE,
    PRIORITY, acknowledgements, unknown types, whatever is for streams that have ended, DATA of next to nothing), at
    once: no window bounds them."""
    control_per_s: float = 100.0
    """How fast that allowance grows again."""
    stateless_resets_burst: int = 2000
    """Datagrams of unknown QUIC connections that are answered with a stateless reset, at once: after a crash every
    client asks. Each answer is shorter than what asked for it."""
    stateless_resets_per_s: float = 500.0
    """How fast that allowance grows again."""
    tickets: int = 4096
    """TLS sessions that h3 clients may resume; the oldest are forgotten first."""

    handshake_s: float = 5.0
    first_byte_s: float = 5.0
    """From an open connection to the first byte of its first request."""
    head_s: float = 10.0
    """From the first byte of a request to the end of its header section."""
    stalled_read_s: float = 30.0
    """A request body of which no byte arrives for this long, while the application could take more: 408."""
    body_bytes_per_s: float = 500.0
    """A body of which less arrives in `stalled_read_s`, while the application could take more: 408."""
    stalled_write_s: float = 30.0
    """A client that takes no byte of its response for this long is disconnected."""
    cancel_grace_s: float = 5.0
    """How long an application may go on after its client has left, before its task is cancelled."""
    keep_alive_s: float = 75.0
    """A connection without a request."""
    linger_s: float = 2.0
    """After an answer that came before the end of its request: how long the rest of the request is still read and
    dropped, so that the client sees the answer and not a reset (RFC 9112 section 9.6)."""
    linger_bytes: int = 1 * MIB
    """How much of that rest is read and dropped."""
    late_request_s: float = 1.0
    """A drain leaves a new connection this long for its first request: who has just come does not expect to be cut."""
    close_s: float = 2.0
    """TLS close_notify, or QUIC draining, before the transport is aborted."""
