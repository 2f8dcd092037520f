"""Sends a request to one node after the other until one shows content, then passes its bytes on untouched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import monotonic
from types import TracebackType

from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.account import Call, Ending
from edgeproxy.gateway.answer import Answer, Whole, whole
from edgeproxy.gateway.attempt import Begun, Failed, attempt
from edgeproxy.gateway.continuation import Said
from edgeproxy.gateway.pump import Broken, Pump, Quiet
from edgeproxy.gateway.resume import Candidates, go_on, go_on_from_text, may_leave
from edgeproxy.gateway.transcript import Transcript
from edgeproxy.observe.metrics import Metrics
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import Headers
from edgeproxy.upstream.h1 import Response
from edgeproxy.upstream.node import Node

HOLD_OFF_S = 1.0
"""How long a node that answered 429 without Retry-After is left alone."""
MAX_HOLD_OFF_S = 60.0


class Place:
    """The one request that counts as in flight at a node, wherever it goes."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> Place:
        self.node.in_flight += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.node.in_flight -= 1

    def move(self, node: Node) -> None:
        self.node.in_flight -= 1
        self.node = node
        node.in_flight += 1


@dataclass(frozen=True, slots=True)
class Request:
    """What goes to nodes: to one, and to another where that fails."""

    headers: Headers
    """Beside the nodes' own credentials."""
    body: bytes
    again: Candidates
    continues: bool = False
    """Some node can go on with a stream from its text alone."""


class Relay:
    """Between the nodes and one client: retries while nothing has been said, and has the stream gone on with after."""

    def __init__(self, limits: GatewayLimits, metrics: Metrics) -> None:
        self._limits = limits
        self._metrics = metrics

    async def run(self, nodes: Iterator[Node], request: Request, answer: Answer, call: Call) -> None:
        """`nodes` in the order in which they are to be tried.

        Raises ClientGone; UpstreamError where nothing but a cut can tell of a failure; every other end is an answer.
        """
        told: Whole | None = None
        for node in islice(nodes, self._limits.attempts):
            call.attempts += 1
            call.node, call.region, call.rtt_s = node.name, node.region, node.rtt.srtt
            begun = monotonic()
            with Place(node) as place:
                try:
                    outcome = await self._attempt(node, request, request.body, call)
                except Failed as failed:
                    call.failures += (f"{node.name}: {failed.reason}",)
                    call.lost_s += monotonic() - begun
                    if told is None or (failed.busy and told.status != 429):
                        told = failed.answer
                else:
                    await self._pass_on(place, outcome, request, answer, call)
                    return
        answer.fields += call.disclosure()
        told = told or whole(_no_node())
        call.code = told.code
        await answer.give(told)

    async def _attempt(self, node: Node, request: Request, body: bytes, call: Call) -> Whole | Begun:
        """Raises Failed, which the node's breaker and the metrics then know of."""
        node.breaker.started(monotonic())
        try:
            outcome = await attempt(node, _fields(node, request.headers, call), body, call, self._limits)
        except Failed as failed:
            self._note(node, failed)
            raise
        except BaseException:
            node.breaker.abandoned()
            raise
        node.breaker.succeeded(monotonic())
        return outcome

    async def _pass_on(
        self, place: Place, outcome: Whole | Begun, request: Request, answer: Answer, call: Call
    ) -> None:
        answer.fields += call.disclosure()
        if isinstance(outcome, Whole):
            await answer.give(outcome)
            return
        if outcome.parser is None:
            with closing(outcome.response):
                await answer.begin(outcome.headers, outcome.held)
                await _copy(outcome.response, answer)
                await answer.end()
            return
        try:
            call.ending = await self._stream(place, outcome, request, answer, call)
            await answer.end()
        except Broken:
            call.code = "upstream_failed"
            await answer.give(whole(_broken()))

    async def _stream(self, place: Place, begun: Begun, request: Request, answer: Answer, call: Call) -> Ending:
        """To the stream's end, over as many nodes as it takes. Raises Broken where no other goes on with it."""
        transcript = Transcript(begun.numerics, Said() if request.continues else None)
        while True:
            try:
                with closing(begun.response):
                    return await self._pump(place.node, begun, transcript, request, answer, call)
            except Broken as broken:
                self._broke(place.node, broken.reason, call)
                found = await self._successor(place, transcript, request, call)
                if found is None:
                    if broken.ending is not None:
                        return broken.ending
                    raise
                begun = found

    async def _pump(
        self, node: Node, begun: Begun, transcript: Transcript, request: Request, answer: Answer, call: Call
    ) -> Ending:
        def stalled() -> bool:
            if not may_leave(transcript, node, request.again, call.resumes):
                return False
            begun.response.close()
            return True

        assert begun.parser is not None
        quiet = Quiet(inf if begun.numerics is None else self._limits.resume_after_s, stalled)
        return await Pump(begun, begun.parser, transcript, answer, self._limits.stall_s).run(quiet)

    async def _successor(self, place: Place, transcript: Transcript, request: Request, call: Call) -> Begun | None:
        """Another node's stream, of which the client has got nothing yet."""

        async def send(node: Node, body: bytes, unseen: Call) -> Whole | Begun:
            place.move(node)
            return await self._attempt(node, request, body, unseen)

        died, outcome = place.node, "exact"
        found = await go_on(transcript, request.body, died, request.again, send, call)
        if found is None:
            outcome = "approximate"
            found = await go_on_from_text(transcript, request.body, died, request.again, send, call)
        if found is not None:
            self._metrics.resumed(outcome)
            call.node, call.region = place.node.name, place.node.region
        elif transcript.resume() is not None:
            self._metrics.resumed("failed")
        return found

    def _broke(self, node: Node, reason: str, call: Call) -> None:
        node.breaker.failed(monotonic())
        node.alarm.set()
        self._metrics.failed(node.name, reason)
        call.failures += (f"{node.name}: {reason}",)

    def _note(self, node: Node, failed: Failed) -> None:
        now = monotonic()
        self._metrics.failed(node.name, failed.reason)
        if failed.busy:
            node.breaker.hold_off(min(failed.retry_after_s or HOLD_OFF_S, MAX_HOLD_OFF_S), now)
            node.breaker.succeeded(now)
        else:
            node.breaker.failed(now)
            node.alarm.set()  # to be probed now: whether it is down is the prober's verdict


def _fields(node: Node, headers: Headers, call: Call) -> Headers:
    return [*headers, *node.chat_headers, *call.to_native] if node.native else [*headers, *node.headers]


async def _copy(response: Response, answer: Answer) -> None:
    """Bytes that we do not read: no event can be put between them, so that a cut is passed on as one."""
    while data := await response.read():
        await answer.write(data)


def _no_node() -> ApiError:
    return ApiError(503, "no node serves this model now; try again", "no_node", headers=((b"retry-after", b"1"),))


def _broken() -> ApiError:
    return ApiError(502, "the node broke off in the middle of its answer; send the request again", "upstream_failed")
