"""The end of a TLS connection that says so, and waits for nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress


def hang_up(transport: asyncio.Transport) -> None:
    """Close behind what was written, with close_notify, without waiting for the peer's: a client that lets a connection
    rest does not look at it, and need not answer before it closes its own side (RFC 8446 section 6.1)."""
    if transport.is_closing():
        return
    transport.close()
    if transport.get_extra_info("ssl_object") is None:
        return
    # The TLS of both event loops takes an end of what is read for an answer, and still sends what waits.
    with suppress(OSError), _same(transport) as sock:  # which may be lost already
        sock.shutdown(socket.SHUT_RD)


def _same(transport: asyncio.Transport) -> socket.socket:
    """uvloop's own stand-in for it does nothing."""
    return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
