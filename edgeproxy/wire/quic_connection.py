"""One QUIC connection between its endpoint, which brings datagrams, and the protocol that runs on it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from aioquic.quic.events import (
    ConnectionIdIssued,
    ConnectionIdRetired,
    ConnectionTerminated,
    HandshakeCompleted,
    QuicEvent,
)

from edgeproxy.client.any_quic import Address, AnyQuic
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.turns import Turns

_TIMER_SLACK_S = 0.001
_FRAMES_PER_PIECE = 8
"""Frames in one datagram that are as much work as a datagram; most hold fewer."""


class Home(Protocol):
    """The endpoint as its connections see it."""

    loop: asyncio.AbstractEventLoop
    limits: Limits

    @property
    def address(self) -> Address: ...

    def wake(self, connection: Connection) -> None: ...

    def guard(self, connection: Connection, step: Callable[..., None], *args: Any) -> None: ...

    def handshaken(self, connection: Connection) -> None: ...

    def migrated(self) -> None: ...

    def route(self, cid: bytes, connection: Connection) -> None: ...

    def unroute(self, cid: bytes, connection: Connection) -> None: ...

    def ended(self, connection: Connection) -> None: ...

    def remove(self, connection: Connection) -> None: ...


class Connection:
    """One QUIC connection: datagrams and a timer go in, datagrams come out; a subclass gives its events a meaning."""

    def __init__(self, quic: AnyQuic, endpoint: Home, host: str, now: float) -> None:
        self.quic = quic
        self.host = host
        self.born = self.heard = now
        """`heard`: when its last datagram came."""
        self.ids: set[bytes] = set()
        self._client: Address | None = None
        """Where it was when we last looked."""
        self._endpoint = endpoint
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._over = False
        self._turns = Turns(endpoint.loop, endpoint.limits.datagrams_per_turn, lambda: None, self._go_on)
        self._queue: deque[tuple[bytes, Address]] = deque()
        """Datagrams that wait for the connection's next turn of the loop."""

    def event(self, event: QuicEvent) -> None:
        """Something happened on the connection."""

    def idle(self, frames: float) -> None:
        """So many frames came that bring nothing further; an honest peer sends next to none."""

    def flushed(self) -> None:
        """Datagrams have been sent: acknowledgements and credit that arrived before have had their effect."""

    def over(self) -> None:
        """Either side has closed the connection, or it timed out; called once."""

    def sweep(self, now: float) -> None:
        """Called about once a second."""

    def drain(self) -> None:
        """Take nothing new, and close when what is in progress has ended."""

    def wake(self) -> None:
        """Send what there is to send at the end of this turn of the event loop."""
        self._endpoint.wake(self)

    # ---- the endpoint's side

    def receive(self, data: bytes, address: Address, now: float) -> None:
        self.heard = now
        if not self._turns.waiting:
            self._take(data, address, now)
        elif len(self._queue) < self._endpoint.limits.datagrams_waiting:
            self._queue.append((data, address))

    def _take(self, data: bytes, address: Address, now: float) -> None:
        self.quic.receive_datagram(data, address, now)
        if address != self._client:
            self._look_where(self.quic.get_peer_address())
        self._turns.spend(1 + self.quic.frames // _FRAMES_PER_PIECE)
        if idle := self.quic.idle_frames:
            self.idle(idle)
        self._take_events()

    def _look_where(self, address: Address | None) -> None:
        """The connection's own word: a datagram may be forged, or come late from the address that was left."""
        if address != self._client and self._client is not None:
            self._endpoint.migrated()
            if self.quic.settled:
                self.drain()
        self._client = address

    def _go_on(self) -> None:
        while self._queue and not self._turns.waiting:
            self._endpoint.guard(self, self._take, *self._queue.popleft(), time.monotonic())
            self.wake()

    def flush(self, now: float, send: Callable[[bytes, Address], None]) -> None:
        self._take_events()  # a reader may have made room for more
        for data, address in self.quic.datagrams_to_send(now):
            send(data, address)
        if self.quic.ended:
            self._end()
        self.flushed()
        self._arm()

    def dispose(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._queue.clear()
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._endpoint.ended(self)
            self.over()

    def _take_events(self) -> None:
        while (event := self.quic.next_event()) is not None:
            if isinstance(event, ConnectionIdIssued):
                self._endpoint.route(event.connection_id, self)
            elif isinstance(event, ConnectionIdRetired):
                self._endpoint.unroute(event.connection_id, self)
            elif isinstance(event, ConnectionTerminated):
                self._endpoint.remove(self)
            else:
                if isinstance(event, HandshakeCompleted):
                    self._endpoint.handshaken(self)
                self.event(event)

    def _arm(self) -> None:
        at = self.quic.get_timer()
        # A deadline that moved away is looked at when the old one fires: cheaper than a new timer for every datagram.
        if at is None or (self._timer is not None and self._timer_at <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._endpoint.loop.call_at(at, self._endpoint.guard, self, self._fired)

    def _fired(self) -> None:
        self._timer = None
        at, now = self.quic.get_timer(), time.monotonic()
        if at is not None and at <= now + _TIMER_SLACK_S:
            self.quic.handle_timer(max(at, now))
            self._take_events()
            self.wake()
        else:
            self._arm()
