"""Finds out within a second and a half that a node has fallen silent while requests wait there.

A process that is stopped, or a network that swallows everything, ends no connection: a request that waits for its first
byte cannot tell it from a long prefill. But a node that computes still answers small requests. So where something waits
and the node says nothing on any connection, it is asked for a sign of life; twice none, and what waits there is given
back to be tried elsewhere. The node itself is the prober's from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from time import monotonic

from edgeproxy.upstream.h1 import UpstreamError
from edgeproxy.upstream.node import Fleet, Node
from edgeproxy.upstream.probe import TARGETS


@dataclass(frozen=True, slots=True)
class VigilLimits:
    """What waits at a node that falls silent is given back after at most tick + patience + questions * answer seconds:
    1.5 as it is, more where the round trip is above 100 ms."""

    tick_s: float = 0.1
    patience_s: float = 0.4
    """Of silence while something waits, before it is asked for a sign of life."""
    metered_patience_s: float = 2.0
    """Of providers (`kind: openai`), who may count such questions against a limit."""
    questions: int = 2
    answer_s: float = 0.5
    trips: float = 5.0
    """An answer has at least so many round trips: a new connection with TLS and the question itself."""


class Vigil:
    """`run()` it until cancelled."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        limits: VigilLimits | None = None,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fleet = fleet
        self._limits = limits or VigilLimits()
        self._clock = clock
        self._wait = wait
        self._asked: set[Node] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                for node in self.suspects(self._clock()):
                    self._asked.add(node)
                    group.create_task(self._ask(node), name=f"vigil {node.name}")
                await self._wait(self._limits.tick_s)

    def suspects(self, now: float) -> list[Node]:
        """Nodes that are taken for well, have requests and say nothing; but those that are being asked."""
        return [
            node
            for node in self._fleet.nodes
            if node.in_flight and node.ready and node not in self._asked and self._silent(node, now)
        ]

    def _silent(self, node: Node, now: float) -> bool:
        limits = self._limits
        patience = limits.metered_patience_s if node.config.kind == "openai" else limits.patience_s
        return now - node.pool.heard_at > patience and node.pool.silent_s(now) > patience

    async def _ask(self, node: Node) -> None:
        try:
            for _ in range(self._limits.questions):
                if await self._lives(node):
                    return
            node.alarm.set()
            if self._elsewhere(node):  # with nowhere to go, waiting is the better part: the prober decides
                trouble = f"silent while requests waited, and no answer to {self._limits.questions} questions"
                node.down(trouble)
                node.pool.fail_waiting(trouble)
        finally:
            self._asked.discard(node)

    async def _lives(self, node: Node) -> bool:
        """Any byte counts, also one for somebody else."""
        asked_at = self._clock()
        try:
            async with asyncio.timeout(max(self._limits.answer_s, self._limits.trips * (node.rtt.srtt or 0.0))):
                response = await node.pool.request(b"GET", TARGETS[node.config.kind], node.headers)
                with closing(response):
                    await response.read()
        except TimeoutError:
            # In line behind requests, it has not been asked at all.
            return node.pool.waiting > 0 or node.pool.heard_at >= asked_at
        except UpstreamError:
            node.alarm.set()  # refused or reset: what waits on other connections will hear of it, or the prober will
        return True

    def _elsewhere(self, node: Node) -> bool:
        """Another node that is well serves one of its models."""
        return any(
            other.ready and other is not node and other not in self._asked
            for model in node.config.models
            for other in self._fleet.serving(model.removesuffix("*"))
        )
