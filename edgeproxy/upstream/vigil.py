"""Finds out within a second and a half that a node has fallen silent while requests wait there.

A process that is stopped, or a network that swallows everything, ends no connection: a request that waits for its first
byte cannot tell it from a long prefill. But a node that computes still answers small requests. So where something waits
and the node says nothing on any connection, it is asked for a sign of life; twice none, and what waits there is given
back to be tried elsewhere. Where there is nobody else to try, it is asked for some seconds more: a node that only
stopped for a moment is worth that, and nobody waits for longer than it is worth. The node itself is the prober's from
then on.
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
    1.5 as it is, more where the round trip is above 100 ms. Where no other node is well, after last_questions: 5.5."""

    tick_s: float = 0.1
    patience_s: float = 0.4
    """Of silence while something waits, before it is asked for a sign of life."""
    metered_patience_s: float = 2.0
    """Of providers (`kind: openai`), who may count such questions against a limit."""
    questions: int = 2
    last_questions: int = 10
    """Where no other node is well."""
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
        told: Callable[[Node], None] = lambda node: None,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`told` of each node that what waited there was taken from."""
        self._fleet = fleet
        self._told = told
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
        """Nodes that have requests and say nothing, but those that are being asked, and those that are down for
        another reason: a request that is sent there as a last resort will hear of it."""
        return [
            node
            for node in self._fleet.nodes
            if node.in_flight and (node.ready or node.silent) and node not in self._asked and self._quiet(node, now)
        ]

    def _quiet(self, node: Node, now: float) -> bool:
        limits = self._limits
        patience = limits.metered_patience_s if node.config.kind == "openai" else limits.patience_s
        return now - node.pool.heard_at > patience and node.pool.silent_s(now) > patience

    async def _ask(self, node: Node) -> None:
        asked, limits = 0, self._limits
        try:
            while asked < limits.last_questions:
                if await self._lives(node):
                    return
                asked += 1
                if asked == limits.questions:
                    node.alarm.set()
                if asked >= limits.questions and (node.silent or self._elsewhere(node)):
                    break
            if node.give_back(f"silent while requests waited, and no answer to {asked} questions"):
                self._told(node)
        finally:
            self._asked.discard(node)

    async def _lives(self, node: Node) -> bool:
        """Any byte counts, also one for somebody else."""
        asked_at = self._clock()
        try:
            async with asyncio.timeout(max(self._limits.answer_s, self._limits.trips * (node.rtt.srtt or 0.0))):
                target = TARGETS[node.config.kind]
                response = await node.pool.request(b"GET", target, node.headers, at_once=True)
                with closing(response):
                    await response.read()
        except TimeoutError:
            return node.pool.heard_at >= asked_at
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
