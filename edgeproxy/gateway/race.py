"""Two copies of one request, of which one answers (`routing.hedge`). The other is ended: no failure of its node.

For streams only: of a whole answer nothing is heard before its end, so that silence says nothing about it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from copy import copy
from time import monotonic
from types import TracebackType
from typing import Any

from edgeproxy.gateway.account import Call
from edgeproxy.gateway.answer import Whole
from edgeproxy.gateway.attempt import Begun, Failed
from edgeproxy.gateway.visit import Visit
from edgeproxy.observe.metrics import Metrics
from edgeproxy.routing.hedge import Hedging, due_s, second
from edgeproxy.upstream.node import Node

Outcome = Whole | Begun
Send = Callable[[Node, Call], Coroutine[Any, Any, Outcome]]
"""The request to one node; what that tells is noted in the call. Raises Failed."""
Others = Callable[[Node], Iterable[Node]]
"""Nodes for a second copy beside the first one's, best first, as things stand when it is asked."""


class Race:
    """A request that may be sent twice."""

    def __init__(self, hedging: Hedging, metrics: Metrics, send: Send, others: Others) -> None:
        self._hedging = hedging
        self._metrics = metrics
        self._send = send
        self._others = others
        self.copied: Node | None = None
        """Where the second copy went."""

    async def run(self, visit: Visit, call: Call, enter: Callable[[Node, float], Visit]) -> Outcome:
        """Sends to the visit's node, and where that is late to another, which `enter` counts it at. Visit and call are
        those of the copy that answers. Raises Failed where none does."""
        self._hedging.sent()
        due = due_s(visit.node.outlook, visit.sent.expected)
        if due is None:
            return await self._send(visit.node, call)
        async with _Copies() as copies:
            first = copies.begin(self._send(visit.node, call))
            await asyncio.wait((first,), timeout=due)
            now = monotonic()
            node = None if first.done() or call.heard else self._second(visit, now)
            if node is None:
                await asyncio.wait((first,))
                return copies.take(first)
            with enter(node, now) as other:
                return await self._both(copies, first, visit, other, call)

    def _second(self, visit: Visit, now: float) -> Node | None:
        node = second(self._others(visit.node), visit.sent.tokens, now)
        return node if node is not None and self._hedging.take() else None

    async def _both(
        self, copies: _Copies, first: asyncio.Task[Outcome], visit: Visit, other: Visit, call: Call
    ) -> Outcome:
        node = self.copied = other.node
        call.attempts += 1
        call.hedge = "abandoned"
        own = copy(call)
        own.failures, own.node, own.region, own.rtt_s = (), node.name, node.region, node.rtt.srtt
        try:
            sent = copies.begin(self._send(node, own))
            won = await _sooner(first, sent)
            call.failures += own.failures
            call.hedge = "won" if won is sent else "failed" if sent.done() else "lost"
            if won is None:
                raise _better(first, sent)
            if won is sent:
                if not first.done():
                    visit.node.outlook.lateness.overtaken()
                call.lost_s += other.sent.at - visit.sent.at
                call.answered_as(own)
                visit.swap(other)
            return copies.take(won)
        finally:
            self._metrics.hedged(call.hedge)


class _Copies:
    """A scope of tasks, with which all end but the one that was taken."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Outcome]] = []

    async def __aenter__(self) -> _Copies:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled() and task.exception() is None and isinstance(outcome := task.result(), Begun):
                outcome.response.close()  # it answered in the moment in which nobody wanted it any more

    def begin(self, work: Coroutine[Any, Any, Outcome]) -> asyncio.Task[Outcome]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    def take(self, task: asyncio.Task[Outcome]) -> Outcome:
        """Of a task that is done. Raises what it has raised."""
        self._tasks.remove(task)
        return task.result()


async def _sooner(*tasks: asyncio.Task[Outcome]) -> asyncio.Task[Outcome] | None:
    """The first that does not fail; None where all do."""
    running = set(tasks)
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done and not isinstance(task.exception(), Failed):
                return task
    return None


def _better(*tasks: asyncio.Task[Outcome]) -> Failed:
    """Of two failures the one that tells the client more: when to come back."""
    failed = [error for task in tasks if isinstance(error := task.exception(), Failed)]
    return next((error for error in failed if error.busy), failed[0])
