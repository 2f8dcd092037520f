"""Sends a request to one node after the other until one shows content, then passes its bytes on untouched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from math import inf
from time import monotonic

from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.account import Call, Ending
from edgeproxy.gateway.answer import Answer, Whole, whole
from edgeproxy.gateway.attempt import Begun, Failed, attempt
from edgeproxy.gateway.continuation import Said
from edgeproxy.gateway.paths import CHAT_PATH
from edgeproxy.gateway.plan import Plan
from edgeproxy.gateway.pump import Broken, Pump, Quiet
from edgeproxy.gateway.race import Race
from edgeproxy.gateway.refusal import fitting_tokens, of_itself_alone
from edgeproxy.gateway.resume import go_on, go_on_from_text, may_leave
from edgeproxy.gateway.stages import Stages
from edgeproxy.gateway.timings import Timings
from edgeproxy.gateway.transcript import Transcript
from edgeproxy.gateway.visit import Visit
from edgeproxy.observe.known import OVER_BUDGET
from edgeproxy.observe.metrics import Metrics
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import Headers
from edgeproxy.routing.hedge import Hedging
from edgeproxy.upstream.h1 import Response
from edgeproxy.upstream.node import Node

HOLD_OFF_S = 1.0
"""How long a node that answered 429 without Retry-After is left alone."""
MAX_HOLD_OFF_S = 60.0
DEADLINE_SHARE = 2.0
"""Of what one node may take to its first byte: in so long a request is to have found its node, however many fail."""
LEAST_ATTEMPT_S = 2.0
"""What a further attempt has in any case: less would be no attempt."""


class Request:
    """What goes to nodes: to one, and to another where that fails."""

    __slots__ = ("body", "headers", "offers", "plan", "visit")

    def __init__(self, headers: Headers, body: bytes, plan: Plan, visit: Callable[[Node, float], Visit]) -> None:
        """`visit`: to be entered when it is sent to a node."""
        self.headers = headers
        """Beside the nodes' own credentials."""
        self.body = body
        self.plan = plan
        self.visit = visit
        self.offers: tuple[tuple[int, Node], ...] = ()
        """Of nodes that refused it for want of memory: for an answer of so many tokens there would be room."""

    def again(self) -> Iterator[Node]:
        """The choice as it would fall now."""
        return self.plan.in_turn(monotonic())

    def elsewhere(self, first: Node) -> Iterator[Node]:
        """The others, as the choice would fall now: those of other regions before those of the first one's."""
        others = [node for node in dict.fromkeys(self.again()) if node is not first]
        return iter(sorted(others, key=lambda node: node.region == first.region))

    @property
    def continues(self) -> bool:
        """Some node can go on with a stream from its text alone."""
        return self.plan.known.fleet.continues


class Relay:
    """Between the nodes and one client: retries while nothing has been said, and has the stream gone on with after."""

    def __init__(self, limits: GatewayLimits, metrics: Metrics, stages: Stages) -> None:
        self._limits = limits
        self._metrics = metrics
        self._stages = stages
        self._hedging = Hedging(limits.hedge_share)

    async def run(self, nodes: Iterator[Node], request: Request, answer: Answer, call: Call) -> Whole | None:
        """`nodes` in the order in which they are to be tried. None: the request is answered; else what to tell the
        client where nobody else serves it.

        Raises ClientGone; UpstreamError where nothing but a cut can tell of a failure.
        """
        told: Whole | None = None
        limits, visit_of = self._limits, request.visit
        most = call.attempts + limits.attempts
        race = self._race(request) if call.stream and self._hedging.on and limits.attempts > 1 else None
        for node in nodes:
            if call.attempts >= most:
                break
            if (race is not None and node is race.copied) or (told is not None and node.silent):
                continue
            call.attempts += 1
            call.node, call.region, call.rtt_s = node.name, node.region, node.rtt.srtt
            begun = monotonic()
            with visit_of(node, begun) as visit:
                try:
                    if told is not None:
                        deadline = call.started + DEADLINE_SHARE * limits.first_byte_s
                        outcome = await self._in_time(node, request, call, max(deadline - begun, LEAST_ATTEMPT_S))
                    elif race is not None:
                        outcome = await race.run(visit, call, visit_of)
                    else:  # the first has all of the time, and the pool sees to that
                        outcome = await self._attempt(node, request, request.body, call)
                except Failed as failed:
                    call.lost_s += monotonic() - begun
                    if told is None or (failed.busy and told.status != 429):
                        told = failed.answer
                else:
                    if not isinstance(outcome, Whole):
                        visit.answered(outcome, call)
                        await self._pass_on(visit, outcome, request, answer, call)
                        return None
                    if outcome.status != 200 and _offered(outcome, visit.node, request):
                        return outcome
                    visit.answered(outcome, call)
                    if call.disclose:
                        answer.fields += call.disclosure()
                    await self._stages.pause()
                    if outcome.status == 200:
                        visit.served()
                        if call.timings:
                            outcome = outcome._replace(body=Timings(call, answer).in_body(outcome.body))
                    await answer.give(outcome)
                    return None
        return told or whole(_no_node())

    async def _in_time(self, node: Node, request: Request, call: Call, seconds: float) -> Whole | Begun:
        """A further attempt, within what is left of the request's time."""
        try:
            async with asyncio.timeout(seconds):
                return await self._attempt(node, request, request.body, call)
        except TimeoutError:
            failed = Failed("timeout", whole(_too_late()))
            self._note(node, failed, request, call)
            raise failed from None

    def _race(self, request: Request) -> Race:
        async def send(node: Node, call: Call) -> Whole | Begun:
            return await self._attempt(node, request, request.body, call)

        return Race(self._hedging, self._metrics, send, request.elsewhere)

    async def _attempt(self, node: Node, request: Request, body: bytes, call: Call) -> Whole | Begun:
        """Raises Failed, which the node's breaker and the metrics then know of."""
        await self._stages.pause()
        node.breaker.started(monotonic())
        try:
            extra = (*node.chat_headers, *call.to_native) if node.native else node.headers
            outcome = await attempt(node, [*request.headers, *extra], body, call, self._limits)
        except Failed as failed:
            self._note(node, failed, request, call)
            raise
        except BaseException:
            node.breaker.abandoned()
            raise
        node.breaker.succeeded(monotonic())
        return outcome

    async def _pass_on(self, visit: Visit, outcome: Begun, request: Request, answer: Answer, call: Call) -> None:
        answer.fields += call.disclosure()
        if outcome.parser is None:
            with closing(outcome.response):
                await answer.begin(outcome.headers, outcome.held)
                await _copy(outcome.response, answer)
                await answer.end()
            return
        try:
            call.ending = await self._stream(visit, outcome, request, answer, call)
            visit.served(call.ending if call.prompt_tokens is None else None)
            await answer.end()
        except Broken:
            call.code = "upstream_failed"
            await answer.give(whole(_broken()))

    async def _stream(self, visit: Visit, begun: Begun, request: Request, answer: Answer, call: Call) -> Ending:
        """To the stream's end, over as many nodes as it takes. Raises Broken where no other goes on with it."""
        transcript = Transcript(
            begun.numerics, Said() if request.continues and call.path == CHAT_PATH.encode() else None
        )
        try:
            while True:
                try:
                    with closing(begun.response):
                        return await self._pump(visit.node, begun, transcript, request, answer, call)
                except Broken as broken:
                    self._broke(visit.node, broken.reason, call)
                    found = await self._successor(visit, transcript, request, call)
                    if found is None:
                        if broken.ending is not None:
                            return broken.ending
                        raise
                    begun = found
        finally:  # a client that leaves has got tokens too
            call.written = transcript.written

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
        timings = Timings(call, answer) if call.timings else None
        return await Pump(begun, begun.parser, transcript, answer, self._limits.stall_s, timings).run(quiet)

    async def _successor(self, visit: Visit, transcript: Transcript, request: Request, call: Call) -> Begun | None:
        """Another node's stream, of which the client has got nothing yet."""

        async def send(node: Node, body: bytes, unseen: Call) -> Whole | Begun:
            visit.move(node)
            return await self._attempt(node, request, body, unseen)

        died, outcome = visit.node, "exact"
        found = await go_on(transcript, request.body, died, request.again, send, call)
        if found is None:
            outcome = "approximate"
            found = await go_on_from_text(transcript, request.body, died, request.again, send, call)
        if found is not None:
            visit.resumed()
            self._metrics.resumed(outcome)
            call.resumed_on += (visit.node.name,)
        elif transcript.resume() is not None:
            self._metrics.resumed("failed")
        return found

    def _broke(self, node: Node, reason: str, call: Call) -> None:
        node.breaker.failed(monotonic())
        node.alarm.set()
        self._metrics.failed(node.name, reason)
        call.failures += (f"{node.name}: {reason}",)

    def _note(self, node: Node, failed: Failed, request: Request, call: Call) -> None:
        asked_for = failed.busy and of_itself_alone(failed.answer)
        call.failures += (f"{node.name}: {OVER_BUDGET if asked_for else failed.reason}",)
        _offered(failed.answer, node, request)
        now = monotonic()
        if not asked_for:
            self._metrics.failed(node.name, failed.reason)
        if failed.busy:
            if not asked_for:
                node.breaker.hold_off(min(failed.retry_after_s or HOLD_OFF_S, MAX_HOLD_OFF_S), now)
            node.breaker.succeeded(now)
        else:
            node.breaker.failed(now)
            node.alarm.set()  # to be probed now: whether it is down is the prober's verdict


def _offered(refused: Whole, node: Node, request: Request) -> bool:
    """Notes what the node has room for, where the client takes a shorter answer."""
    fits = fitting_tokens(refused) if request.plan.wishes.degrade else None
    if fits is not None:
        request.offers += ((fits, node),)
    return fits is not None


async def _copy(response: Response, answer: Answer) -> None:
    """Bytes that we do not read: no event can be put between them, so that a cut is passed on as one."""
    while data := await response.read():
        await answer.write(data)


def _no_node() -> ApiError:
    return ApiError(503, "no node serves this model now; try again", "no_node", headers=((b"retry-after", b"1"),))


def _too_late() -> ApiError:
    return ApiError(504, "the node sent no content in time; try again", "upstream_failed")


def _broken() -> ApiError:
    return ApiError(502, "the node broke off in the middle of its answer; send the request again", "upstream_failed")
