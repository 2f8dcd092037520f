"""A request's course: held while all are busy, sent, and where nobody takes it made smaller, as far as that is allowed.

In order: the nodes of its model in every region it may be served in, standby ones last; a shorter answer, where the
client allows it; the operator's fallback model; a refusal that says when and where to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from math import ceil, inf
from operator import itemgetter
from time import monotonic

from edgeproxy.access.tenants import Tenant
from edgeproxy.gateway.account import Call
from edgeproxy.gateway.admit import ChatRequest
from edgeproxy.gateway.answer import Answer, Whole, whole
from edgeproxy.gateway.bodies import in_turns
from edgeproxy.gateway.plan import Plan, in_turn
from edgeproxy.gateway.refusal import code_of, shortened, with_model, with_region
from edgeproxy.gateway.relay import Relay, Request
from edgeproxy.gateway.route import Router
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import Headers
from edgeproxy.routing.choose import Decision, Hold
from edgeproxy.upstream.node import Node

DEGRADED = b"x-edge-degraded"
"""Tells every client what was changed about its request."""


class Course:
    def __init__(
        self,
        router: Router,
        relay: Relay,
        budget_s: float,
        budgets: Mapping[str, float],
        fallbacks: Mapping[str, str],
        turns: asyncio.Lock,
    ) -> None:
        """`budget_s`: for a first token, where neither tenant nor `budgets` (model -> seconds) names another.
        `fallbacks`: model -> model. `turns`: of those who work on large bodies."""
        self._router = router
        self._relay = relay
        self._budget_s = budget_s
        self._budgets = budgets
        self._fallbacks = fallbacks
        self._turns = turns

    def request(self, plan: Plan, body: bytes, tenant: Tenant, headers: Headers, call: Call) -> Request:
        """What is to be served: `body` with `headers`, as planned."""
        call.budget_s = tenant.budget_s or self._budgets.get(plan.label, self._budget_s)
        call.own_budget_s = plan.wishes.budget_s
        return Request(headers, body, plan, partial(self._router.visit, plan))

    def serve(self, request: Request, answer: Answer, call: Call) -> Awaitable[Whole | None]:
        """To be awaited. None: it is answered. Else what the client is to be told if nobody does better.

        Raises ClientGone, and UpstreamError where nothing but a cut can tell of a failure.
        """
        now = monotonic()
        found = request.plan.decide(now, hold_until(call) - now)
        if isinstance(found, Hold):
            return self._held(found, now, request, answer, call)
        return self._send(found, now, request, answer, call)

    async def make_do(
        self, refusal: Whole, request: Request, asked: ChatRequest, tenant: Tenant, answer: Answer, call: Call
    ) -> None:
        """Nobody takes it as it is. Raises as `serve` does, and ApiError 400 where it cannot be made smaller."""
        refused: Whole | None = refusal
        if request.offers:
            fits, node = max(request.offers, key=itemgetter(0))
            answer.fields.append((DEGRADED, b"max_tokens=%d" % fits))
            body = await in_turns(shortened(asked.body, fits), self._turns)
            shorter = Request(request.headers, body, request.plan, request.visit)
            refused = await self._relay.run(iter((node,)), shorter, answer, call) and refused
        other = self._fallbacks.get(asked.model)
        if refused is not None and other is not None and (refused.status == 429 or refused.status >= 500):
            body = await in_turns(with_model(asked.body, other), self._turns)
            lesser = self._fallback(asked.of_model(other, body), tenant, request)
            if lesser is not None:
                answer.fields = [*_unchanged(answer), (DEGRADED, b"model=" + other.encode("ascii"))]
                call.model = lesser.plan.label
                refused = await self.serve(lesser, answer, call) and refused
        if refused is not None:
            answer.fields = _unchanged(answer)
            call.code = code_of(refused)
            answer.fields += call.disclosure()
            await answer.give(_advised(refused, request.plan, call))

    def _fallback(self, asked: ChatRequest, tenant: Tenant, request: Request) -> Request | None:
        """None where the tenant's regions do not serve that model."""
        try:
            plan = self._router.plan(asked, tenant, request.plan.wishes)
        except ApiError:
            return None
        return Request(request.headers, asked.body, plan, partial(self._router.visit, plan))

    def _send(
        self, decision: Decision[Node], now: float, request: Request, answer: Answer, call: Call
    ) -> Awaitable[Whole | None]:
        if call.choice is None:
            call.choice = decision.noted()
        if decision.first is None:
            return _nobody(request.plan, now)
        return self._relay.run(in_turn(decision, now), request, answer, call)

    async def _held(
        self, found: Decision[Node] | Hold, begun: float, request: Request, answer: Answer, call: Call
    ) -> Whole | None:
        """All nodes are hot: until one is not, or its time is over. `begun`: now."""
        plan, now, until, deadline = request.plan, begun, inf, hold_until(call)
        while isinstance(found, Hold):
            until = min(until, found.until)  # the first hold's end, however often it has to wait
            await self._router.holds.wait(plan, call.started, until, deadline)
            now = monotonic()
            found = plan.decide(now, until - now)
        call.held_s += now - begun
        return await self._send(found, now, request, answer, call)


def hold_until(call: Call) -> float:
    """A client may be in more of a hurry than the operator; what it could wait longer for, the objective could not."""
    own = call.own_budget_s
    return call.started + (call.budget_s if own is None else min(own, call.budget_s))


def _unchanged(answer: Answer) -> Headers:
    return [field for field in answer.fields if field[0] != DEGRADED]


async def _nobody(plan: Plan, now: float) -> Whole:
    return whole(_none(plan, now))


def _none(plan: Plan, now: float) -> ApiError:
    """Nobody may be asked: 429 where all who could serve it asked for a pause, else 503."""
    waits = [node.breaker.not_before - now for node in plan.nodes if not node.draining]
    wait = min((wait for wait in waits if wait > 0), default=None)
    if wait is None:
        return ApiError(503, "no node serves this model now; try again", "no_node", headers=((b"retry-after", b"1"),))
    return ApiError(
        429,
        f"every node that serves this model asked for a pause; try again in {ceil(wait)} s",
        "rate_limit_exceeded",
        headers=((b"retry-after-ms", b"%d" % ceil(wait * 1e3)), (b"retry-after", b"%d" % ceil(wait))),
    )


def _advised(refused: Whole, plan: Plan, call: Call) -> Whole:
    """A client that pinned its request and may know of regions is told of another one, where memory was wanting."""
    if plan.wishes.regions is None or not call.disclose:
        return refused
    elsewhere = plan.elsewhere(monotonic())
    return refused if elsewhere is None else with_region(refused, elsewhere)
