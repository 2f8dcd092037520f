"""TLS session tickets of the QUIC listener: kept here, each good for one resumption."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Protocol


class Ticket(Protocol):
    """Of either QUIC library."""

    ticket: bytes

    @property
    def is_valid(self) -> bool: ...


class Tickets:
    """A ticket that has been shown is gone. So the early data behind it, if any, is taken once and cannot be replayed
    to this process (RFC 8446 section 8.1); another process does not know the ticket and makes a full handshake."""

    def __init__(self, most: int) -> None:
        """`most`: how many are remembered; beyond it the oldest are forgotten."""
        self._most = most
        self._tickets: OrderedDict[bytes, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.ticket] = ticket
        if len(self._tickets) > self._most:
            self._tickets.popitem(last=False)

    def take(self, label: bytes) -> Any:
        """The very ticket; None for one that was never given out, was used, forgotten, or has expired."""
        ticket = self._tickets.pop(label, None)
        return ticket if ticket is not None and ticket.is_valid else None
