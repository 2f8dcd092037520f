"""Requests that wait here while every node makes its own wait."""

from __future__ import annotations

import asyncio
from math import inf
from time import monotonic

from edgeproxy.gateway.plan import Plan
from edgeproxy.routing.hold import Held, Room
from edgeproxy.routing.load import Sent
from edgeproxy.upstream.node import Node

_Place = tuple[Node, Sent]
"""Kept at a node for the one who was called, so that nobody who comes in between finds the node cold too."""


class Holds:
    """Made and used on one event loop."""

    def __init__(self) -> None:
        self._room = Room()
        self._called: dict[Held, tuple[asyncio.Future[_Place], Plan]] = {}

    def __len__(self) -> int:
        return len(self._room)

    async def wait(self, plan: Plan, arrival: float, until: float, deadline: float = inf) -> None:
        """Until a node that may serve it turns cold, or `until`; at once where too many wait already."""
        held = Held(plan.slots, until, arrival, deadline=deadline)
        if not self._room.enter(held):
            return
        future: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._called[held] = (future, plan)
        try:
            async with asyncio.timeout(max(until - monotonic(), 0.0)):
                await future
        except TimeoutError:
            pass
        finally:
            self._room.leave(held)
            self._called.pop(held, None)
            if future.done() and not future.cancelled():
                node, sent = future.result()
                node.outlook.load.ended(sent, monotonic(), served=False)

    def rest(self, node: Node) -> None:
        """Something at the node has come to an end: it takes whom it can."""
        if not self._called:
            return
        now = monotonic()
        while node.ready and not node.draining and node.breaker.admits(now):
            if node.outlook.load.hot(now, 1.0):
                return
            held = self._room.take(node.slot)
            if held is None:
                return
            future, plan = self._called.pop(held)
            if not future.done():
                sent = node.outlook.sent(now, plan.wanted.to_compute(node.slot))
                future.set_result((node, sent))
