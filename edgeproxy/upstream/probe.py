"""Asks every node for ever whether it is ready, and measures how far away it is.

A probe is a small GET on a warm connection of the node's own pool, so it keeps that connection warm besides. Its round
trip, less the time that the node says it spent, is the sample. On a connection's first exchange the node does work that
a warm one never sees: that one is only a sign of life, and is repeated at once for the sample.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from time import monotonic

from edgeproxy.config import NodeKind
from edgeproxy.protocol.node.report import TOKEN_ENV, NodeState
from edgeproxy.upstream.foreign import Foreign
from edgeproxy.upstream.h1 import Response, UpstreamError
from edgeproxy.upstream.node import Fleet, Node

TARGETS: dict[NodeKind, bytes] = {
    "native": b"/readyz",
    "vllm": b"/health",
    "sglang": b"/health",
    "llamacpp": b"/health",
    "openai": b"/v1/models",
}
_NEAREST = 3
"""Regions beside home whose nodes are probed often."""


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    near_s: float = 5.0
    far_s: float = 30.0
    first_retry_s: float = 0.25
    """After the first failed probe; half as much again after each further one."""
    last_retry_s: float = 1.0
    settling: int = 8
    """A node that has just become ready is asked this often in quick succession, so that its estimate settles."""
    settling_s: float = 0.25
    exchanges: int = 3
    """Round trips of one probe. The smallest is the sample: what delays a single one is load, not distance."""
    jitter: float = 0.2
    timeout_s: float = 2.0
    lost: int = 4
    """Probes without an answer, one after the other, that make a node lost: what waits for it turns to another."""
    warm: int = 2
    """Idle connections kept open to each ready node."""
    body_bytes: int = 1024 * 1024
    """Of a probe's answer; a provider's list of models may be long."""


async def wait_alarm(alarm: asyncio.Event, seconds: float) -> None:
    """Until the alarm or the time, whichever is first."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await alarm.wait()


class Prober:
    """`run()` it until cancelled. `changed` is told of each node whose readiness is no longer what it was told last."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        rng: Random,
        changed: Callable[[Node], None] = lambda node: None,
        limits: ProbeLimits | None = None,
        clock: Callable[[], float] = monotonic,
        wait: Callable[[asyncio.Event, float], Awaitable[None]] = wait_alarm,
    ) -> None:
        self._fleet = fleet
        self._rng = rng
        self._changed = changed
        self._limits = limits or ProbeLimits()
        self._clock = clock
        self._wait = wait
        self._group: asyncio.TaskGroup | None = None
        self._watches: dict[Node, asyncio.Task[None]] = {}
        self._others: dict[Node, Foreign] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as self._group:
            self.follow()

    def follow(self) -> None:
        """The fleet has other nodes than before: watches the new ones and leaves those that are gone."""
        if self._group is None:
            return
        for node in self._fleet.nodes:
            if node not in self._watches:
                self._watches[node] = self._group.create_task(self._watch(node), name=f"probe {node.name}")
        for node in [node for node in self._watches if node not in self._fleet.nodes]:
            self._watches.pop(node).cancel()
            self._others.pop(node, None)

    async def _watch(self, node: Node) -> None:
        successes, failures, told = 0, 0, False
        while True:
            node.alarm.clear()
            if await self.probe(node, failures):
                successes, failures = successes + 1, 0
            else:
                successes, failures = 0, failures + 1
            if node.ready != told:
                told = node.ready
                self._changed(node)
            await self._wait(node.alarm, self.pause(node, failures, successes))

    async def probe(self, node: Node, failures: int = 0) -> bool:
        """Probes once, records what was found, and says whether the node is fit. `failures`: probes failed so far."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                trouble = await self._measure(node)
                await node.pool.warm(self._limits.warm)
        except TimeoutError:
            trouble = f"no answer to a probe within {self._limits.timeout_s:g} s"
            if failures or not node.ready:  # one lost probe alone is not the death of a node that was well
                node.down(trouble, silent=True)
            if failures + 1 >= self._limits.lost:  # frozen, or cut off without a word: its connections will not tell
                node.give_back(trouble)
            return False
        except UpstreamError as error:
            node.down(error.message)
            return False
        if trouble:
            node.down(trouble)
        else:
            now = self._clock()
            node.up(now)
            node.breaker.probed(now)
            node.outlook.probed(now)
        return not trouble

    async def _measure(self, node: Node) -> str:
        """Takes a sample of the round trip unless the node is not fit, and returns why it is not; empty if it is."""
        response = await self._ask(node)
        if not response.reused:
            response = await self._ask(node)
        trouble = self._trouble(node, response.status)
        if trouble:
            return trouble  # it is starting or ailing: how long it takes tells nothing of the distance
        trips = [self._round_trip(node, response)]
        for _ in range(self._limits.exchanges - 1):
            response = await self._ask(node)
            trips.append(self._round_trip(node, response))
        now = self._clock()
        measured = [trip for trip in trips if trip is not None]
        if measured:
            node.rtt.probe(min(measured), now)
            kernel = response.tcp_rtt()
            if kernel is not None:
                node.rtt.kernel(kernel, now)
            self._fleet.measured(now)
        if node.config.kind != "native":
            await self._foreign(node).look(now, node.rtt.srtt or 0.0)
        return ""

    def _foreign(self, node: Node) -> Foreign:
        found = self._others.get(node)
        if found is None:
            found = self._others[node] = Foreign(node)
        return found

    def _round_trip(self, node: Node, response: Response) -> float | None:
        """Less what the node says it spent; None on a cold connection."""
        if not response.reused:
            return None
        handling = node.report.handling_s if node.report is not None else 0.0
        return response.first_byte_at - response.sent_at - handling

    async def _ask(self, node: Node) -> Response:
        response = await node.pool.request(b"GET", TARGETS[node.config.kind], node.headers, at_once=True)
        with contextlib.closing(response):
            size = 0
            while data := await response.read():
                size += len(data)
                if size > self._limits.body_bytes:
                    raise UpstreamError("body", node.name, f"a probe's answer exceeds {self._limits.body_bytes} bytes")
        node.report = None
        node.observe(response.headers, self._clock())
        return response

    def _trouble(self, node: Node, status: int) -> str:
        """Why a node that answered is not fit; empty if it is."""
        target = TARGETS[node.config.kind].decode()
        if status == 401 and node.native:
            return f"{target} answers 401: its node token is another; give both the same {TOKEN_ENV}"
        if status in (401, 403):
            return f"{target} answers {status}: it wants another key than the one in api_key_env"
        if status != 200:
            return f"{target} answers {status}"
        if node.report is not None and node.report.state is not NodeState.READY:
            return f"it says that it is {node.report.state}"
        if node.stuck(self._clock()):
            return "it runs sequences but makes no step"
        return ""

    def pause(self, node: Node, failures: int, successes: int) -> float:
        """Seconds until the next probe; how many have failed, or succeeded, in a row."""
        limits = self._limits
        if failures:
            seconds = min(limits.first_retry_s * 1.5 ** min(failures - 1, 16), limits.last_retry_s)
        elif successes < limits.settling:
            seconds = limits.settling_s
        else:
            seconds = limits.near_s if self._fleet.home.ranks[node.region] <= _NEAREST else limits.far_s
        return seconds * self._rng.uniform(1 - limits.jitter, 1 + limits.jitter)
