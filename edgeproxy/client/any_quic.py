"""A QUIC connection as the project needs it (RFC 9000), whichever library is behind it.

Datagrams, time and what is to be sent go in; events, datagrams and a time to be called again come out. Nothing here
reads a clock or a socket. Events are those of `aioquic.quic.events`, which HTTP/3 above is written for.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

from aioquic.quic.events import QuicEvent

Address = tuple[Any, ...]
"""As sockets tell it: of two items for IPv4, of four for IPv6."""


class Ending(NamedTuple):
    """Why a connection is over."""

    by: Literal["us", "peer", "silence"]
    code: int
    application: bool
    """`code` is HTTP/3's (RFC 9114 section 8.1), not QUIC's (RFC 9000 section 20.1)."""
    reason: str


class AnyQuic(Protocol):
    """All times are of one clock that only goes forward, in seconds."""

    @property
    def host_cid(self) -> bytes:
        """The connection id that the peer was given first."""

    # ---- datagrams and time

    def receive_datagram(self, data: bytes, addr: Address, now: float) -> None: ...

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Any]]:
        """Each with the address that it is for."""

    def get_timer(self) -> float | None:
        """When `handle_timer` is due; None: never."""

    def handle_timer(self, now: float) -> None: ...

    def next_event(self) -> QuicEvent | None:
        """None: there is none at the moment. It must be asked after datagrams, timers and `release`."""

    @property
    def frames(self) -> int:
        """Work that the last datagram brought: a datagram of the usual kind is one of a few frames."""

    @property
    def idle_frames(self) -> float:
        """How much of that work brings nothing further; an honest peer causes next to none."""

    # ---- what is received: memory is bounded by what has not been read

    def hold(self, stream_id: int, size: int) -> None:
        """`size` octets of the stream wait for a reader."""

    def release(self, stream_id: int, size: int) -> bool:
        """A reader took `size` octets that were held. True when something is to be sent, or events may wait."""

    def forget(self, stream_id: int) -> None:
        """Nobody will read what is still held."""

    def stop_receiving(self, stream_id: int, code: int) -> None:
        """STOP_SENDING, unless everything has arrived."""

    # ---- what is sent

    def get_next_available_stream_id(self, is_unidirectional: bool = False) -> int: ...

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None: ...

    def stop_sending(self, stream_id: int, code: int) -> None:
        """RESET_STREAM, unless everything has been acknowledged."""

    def writable(self, stream_id: int) -> bool:
        """Neither ended, nor reset by us or at the peer's request; its event may still wait to be handled."""

    def unsent(self, stream_id: int) -> int:
        """Octets written to the stream that neither congestion control nor the peer's credit has let out yet."""

    def delivered(self, stream_id: int) -> bool:
        """The peer has acknowledged the end, or the reset, of what we send on the stream."""

    def send_ping(self, uid: int) -> None:
        """A PingAcknowledged event of this `uid` follows."""

    def take_lost(self) -> int:
        """Packets of ours that were lost since the last call, by the acknowledgements of later ones."""

    # ---- the connection as a whole

    @property
    def started(self) -> bool:
        """A packet of the peer has been decrypted."""

    @property
    def handshaken(self) -> bool: ...

    def close(self, error_code: int, *, reason_phrase: str = "") -> None: ...

    @property
    def ended(self) -> bool:
        """Closed by either side or timed out; ConnectionTerminated comes only after the draining period."""

    @property
    def ending(self) -> Ending | None:
        """None while the connection is open."""

    @property
    def end_reason(self) -> str:
        """For a log."""

    @property
    def idle_timeout(self) -> float:
        """Seconds of silence after which either side drops the connection (RFC 9000 section 10.1)."""

    @property
    def rtt(self) -> float | None:
        """Seconds, the least so far. None before the first sample."""

    @property
    def settled(self) -> bool:
        """It would not follow the peer to another address: better to go while all is well."""

    def get_peer_address(self) -> Address | None:
        """Where the peer is at the moment: it may migrate."""
