"""Noticing a client that has stopped taking its response."""

from __future__ import annotations

import asyncio
from math import inf


class StallWatch:
    """Samples how much of the response is still queued in this process; no timer of its own."""

    __slots__ = ("_limit_s", "_queued", "_since", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, limit_s: float) -> None:
        self._transport = transport
        self._limit_s = limit_s
        self._queued = 0
        self._since = inf

    def stalled(self, now: float) -> bool:
        """To be asked about once a second: True once the queue has not shrunk for `limit_s`."""
        queued = self._transport.get_write_buffer_size()
        if queued == 0:
            self._since = inf
        elif queued < self._queued or self._since == inf:
            self._since = now
        self._queued = queued
        return now - self._since >= self._limit_s
