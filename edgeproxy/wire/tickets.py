"""TLS session tickets of the QUIC listener: kept here, each good for one resumption."""

from __future__ import annotations

from collections import OrderedDict

from aioquic.tls import SessionTicket


class Tickets:
    """A ticket that has been shown is gone. So the early data behind it, if any, is taken once and cannot be replayed
    to this process (RFC 8446 section 8.1); another process does not know the ticket and makes a full handshake."""

    def __init__(self, most: int) -> None:
        """`most`: how many are remembered; beyond it the oldest are forgotten."""
        self._most = most
        self._tickets: OrderedDict[bytes, SessionTicket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: SessionTicket) -> None:
        self._tickets[ticket.ticket] = ticket
        if len(self._tickets) > self._most:
            self._tickets.popitem(last=False)

    def take(self, label: bytes) -> SessionTicket | None:
        """None for a ticket that was never given out, was used, forgotten, or has expired."""
        ticket = self._tickets.pop(label, None)
        return ticket if ticket is not None and ticket.is_valid else None
