"""Noticing a client that has stopped taking its response, or sends its request too slowly."""

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


class BodyPace:
    """Of a body that is waited for: silence is too slow, and one octet now and then is no progress either."""

    __slots__ = ("_heard", "_least", "_octets", "_since", "_window_s")

    def __init__(self, window_s: float, least_per_s: float) -> None:
        self._window_s = window_s
        self._least = least_per_s * window_s
        self._octets = 0
        self._since = self._heard = inf

    def begin(self, now: float) -> None:
        """More of the body is waited for from now on."""
        self._since = self._heard = now
        self._octets = 0

    def arrived(self, octets: int, now: float) -> None:
        self._octets += octets
        self._heard = now

    def end(self) -> None:
        """Nothing is waited for."""
        self._since = self._heard = inf

    def too_slow(self, now: float) -> bool:
        """To be asked about once a second: nothing came for a whole window, or less in one than must."""
        if now - self._heard >= self._window_s:
            return True
        if now - self._since < self._window_s:
            return False
        if self._octets < self._least:
            return True
        self._since, self._octets = now, 0
        return False
