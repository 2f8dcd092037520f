"""Follows what native nodes tell of their KV, so that a prompt that was evicted is not taken to be there.

A node's feed is one long answer on a connection of its own pool. It is no matter of life: where it breaks off, it is
read on from the last event, or from a new snapshot; meanwhile the prefix view lives by what answers count.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from edgeproxy.protocol.node.blocks import decode
from edgeproxy.protocol.openai.headers import find, media_type
from edgeproxy.protocol.openai.sse import MEDIA_TYPE, SseError, SseParser
from edgeproxy.routing.evictions import Evictions
from edgeproxy.upstream.h1 import Response, UpstreamError
from edgeproxy.upstream.node import Fleet, Node

EVENTS: Final = b"/node/v1/events"
RETRY_S = 1.0
"""Between looks at the fleet, and before a feed that ended is asked for again."""


class Follower:
    """`run()` it until cancelled."""

    def __init__(self, fleet: Fleet, wait: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._fleet = fleet
        self._wait = wait
        self._feeds: dict[Node, asyncio.Task[None]] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for node in [node for node in self._feeds if node not in self._fleet.nodes]:
                    self._feeds.pop(node).cancel()
                for node in self._fleet.nodes:
                    if node.native and node not in self._feeds:
                        self._feeds[node] = group.create_task(self._follow(node), name=f"feed {node.name}")
                await self._wait(RETRY_S)

    async def _follow(self, node: Node) -> None:
        while True:
            if node.ready:
                try:
                    await self.read(node)
                except (UpstreamError, SseError):
                    pass  # it goes on from the last event
                except ValueError:
                    node.evictions = Evictions()  # what it tells makes no sense: from the beginning
            await self._wait(RETRY_S)

    async def read(self, node: Node) -> None:
        """Until the feed ends. Raises UpstreamError, SseError, and ValueError for what a sound node would not send."""
        last = node.evictions.held.position
        known = [(b"last-event-id", last.encode())] if last is not None else []
        headers = [*node.headers, (b"accept", MEDIA_TYPE), *known]
        response = await node.pool.request(b"GET", EVENTS, headers)
        response.replaceable = False
        with contextlib.closing(response):
            if response.status == 200 and media_type(find(response.headers, b"content-type")) == MEDIA_TYPE:
                await self._apply(node, response)

    async def _apply(self, node: Node, response: Response) -> None:
        parser = SseParser()
        while data := await response.read():
            if node not in self._fleet.nodes:
                return  # its slot in the prefix view may be another's by now
            for event in parser.feed(data):
                if not event.comment:
                    for names, depth in node.evictions.apply(decode(event.data)):
                        self._fleet.prefixes.unsent(node.slot, names, depth)
