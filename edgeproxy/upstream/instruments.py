"""Reads native nodes' instruments now and then, for the metrics and the dashboard. No request waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from edgeproxy.protocol.node.instruments import MAX_STATUS_BYTES, decode
from edgeproxy.protocol.node.instruments import Instruments as Measured
from edgeproxy.upstream.h1 import UpstreamError
from edgeproxy.upstream.node import Fleet, Node

STATUS: Final = b"/node/v1/status"
PERIOD_S = 5.0
TIMEOUT_S = 2.0


class Instruments:
    """`run()` it until cancelled."""

    def __init__(self, fleet: Fleet, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._fleet = fleet
        self._wait = wait

    async def run(self) -> None:
        while True:
            await asyncio.gather(*(self.look(node) for node in self._fleet.nodes if node.native))
            await self._wait(PERIOD_S)

    async def look(self, node: Node) -> None:
        """A node that does not answer, or not sensibly, has none: stale figures look like true ones. One that drains is
        asked, too: why it does may be what it measured."""
        found = None
        with contextlib.suppress(UpstreamError, ValueError, TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._read(node)
        node.instruments = found

    async def _read(self, node: Node) -> Measured | None:
        response = await node.pool.request(b"GET", STATUS, node.headers)
        with contextlib.closing(response):
            body = bytearray()
            while len(body) <= MAX_STATUS_BYTES and (data := await response.read()):
                body += data
        return decode(bytes(body)) if response.status == 200 else None
