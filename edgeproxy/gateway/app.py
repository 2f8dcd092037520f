"""The proxy's front door, plain ASGI: what nodes answer is served here, all else by the application behind it."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import lru_cache
from random import Random
from time import monotonic
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import HostCheck
from edgeproxy.access.tenants import ANONYMOUS, Tenant
from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.account import UNKNOWN_MODEL, Account, Call
from edgeproxy.gateway.admit import REQUEST_ID, ChatRequest, Fields, may_see_details, read_chat, request_id, terms
from edgeproxy.gateway.answer import Answer, Whole, whole
from edgeproxy.gateway.bodies import Bodies
from edgeproxy.gateway.controls import NO_WISHES, WISHES, Controls, controls, fields_of
from edgeproxy.gateway.course import Course
from edgeproxy.gateway.paths import CHAT_PATH, ROUTED, plain
from edgeproxy.gateway.relay import Relay
from edgeproxy.gateway.route import Router
from edgeproxy.gateway.stages import Stages
from edgeproxy.gateway.timings import asked
from edgeproxy.gateway.watch import ClientGone, Message, Receive, Send, Watch
from edgeproxy.observe.log import Log
from edgeproxy.observe.trace import Tracer
from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import TO_NODE, Headers, to_node
from edgeproxy.protocol.trace_context import FIELD as TRACEPARENT
from edgeproxy.upstream.node import Fleet
from edgeproxy.upstream.salts import TENANTS
from edgeproxy.wire.ingress import HeadNote, Ingress, ingress
from edgeproxy.wire.quota import address_key

Scope = MutableMapping[str, Any]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

CLIENT_CLOSED = 499
"""Status in log and metrics of a request whose client left before any answer (nginx's convention)."""


_JSON = b"application/json"
_PLAIN: Final[Fields] = MappingProxyType({b"content-type": _JSON})
"""What is to be heeded of most heads, beside who sends them."""
_HEEDED = WISHES | {*TO_NODE, REQUEST_ID, b"content-encoding"}


class Standing(NamedTuple):
    """Who asks. It holds nothing of the key."""

    tenant: Tenant
    disclose: bool
    """Whether the client may see timings and topology."""
    client: str
    """Who has one part of what is bounded for all."""
    generation: int
    """Of the keys by which it was found."""


class Gateway:
    """ASGI 3 application for http scopes; every error it answers with is OpenAI-shaped."""

    def __init__(
        self,
        fleet: Fleet,
        keys: Keys,
        hosts: HostCheck,
        limits: GatewayLimits,
        budget_s: float,
        budgets: Mapping[str, float],
        fallbacks: Mapping[str, str],
        account: Account,
        log: Log,
        rest: AsgiApp,
        rng: Random,
    ) -> None:
        """`rest` answers everything that nodes do not, and asks for keys itself."""
        self._fleet = fleet
        self._keys = keys
        self._hosts = hosts
        self._limits = limits
        self._account = account
        self._log = log
        self._rest = rest
        self._rng = rng
        salt_of = fleet.salts.of
        self._usual_terms = lru_cache(TENANTS)(lambda name, priority: Terms(salt_of(name), priority).encode())
        self._bodies = Bodies(limits.bodies_bytes)
        self._router = Router(fleet, rng)
        self._stages = Stages()
        relay = Relay(limits, account.metrics, self._stages)
        self._course = Course(self._router, relay, budget_s, budgets, fallbacks, self._bodies.turns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        path = scope["path"]
        if path not in ROUTED:
            path = plain(path)
            scope = {**scope, "path": path}
        known = ingress(scope)
        standing = None if known is None or known.note is None else self._noted(known.note)
        fields = dict(scope["headers"]) if standing is None else _PLAIN
        identity = request_id(fields, self._rng)
        answer = Answer(send, identity)
        if path not in ROUTED or scope["method"] != "POST":
            try:
                await self._other(scope, receive, answer)
            except Exception as error:
                await self._fail(error, answer, None)
            return
        if known is None:
            call = Call(identity, monotonic(), "h1", None)
        else:
            known.request_id = identity
            call = Call(identity, known.first_byte, known.protocol, known.rtt())
        if path != CHAT_PATH:
            call.path = path.encode("ascii")
        stages = self._stages
        stages.under_way += 1
        try:
            if standing is None:
                standing, fields = self._admitted(scope, fields, known)
            await self._chat(standing, fields, known, receive, answer, call)
        except Exception as error:
            await self._fail(error, answer, call)
        finally:
            stages.under_way -= 1
            answer.close()
            call.status = answer.status or CLIENT_CLOSED
            call.handed_at = answer.handed_at
            if known is not None and known.refused is not None:
                _refused_by_listener(known.refused, answer, call)
            self._account.close(call, monotonic())

    async def _fail(self, error: Exception, answer: Answer, call: Call | None) -> None:
        """Turns what went wrong into an answer while there is one to give; else the listener cuts the connection."""
        failure = error
        if not isinstance(error, ApiError | ClientGone):
            self._report(error, answer)
            if answer.ended:  # Starlette raises again what it has answered
                return
            if answer.started:
                raise error
            failure = ApiError(500, "the proxy failed; the operator's log says where", "internal_error")
        try:
            if isinstance(failure, ApiError):
                if call is not None:
                    call.code = failure.code
                await answer.give(whole(failure))
                return
        except ClientGone:
            pass
        if call is not None:
            call.client_gone = True

    def _noted(self, note: HeadNote) -> Standing | None:
        """Of who has sent that head before, if there was nothing else in it to be heeded."""
        found: Standing | None = note.found
        return found if found is not None and found.generation == self._keys.generation else None

    def _admitted(self, scope: Scope, fields: Fields, known: Ingress | None) -> tuple[Standing, Fields]:
        """Whoever asks, with all of the head that is to be heeded. Raises ApiError 400, 401, 421."""
        if len(fields) < len(scope["headers"]):
            fields = fields_of(scope["headers"])
        self._hosts.check(fields.get(b"host"))
        tenant = self._keys.tenant(fields.get(b"authorization"))
        client = tenant.name if tenant is not ANONYMOUS else _address(scope)
        standing = Standing(tenant, may_see_details(scope, fields, tenant), client, self._keys.generation)
        if known is not None and known.note is not None:
            plain = fields.get(b"content-type") == _JSON and _HEEDED.isdisjoint(fields)
            known.note.found = standing if plain else None
        return standing, fields

    async def _chat(
        self, standing: Standing, fields: Fields, known: Ingress | None, receive: Receive, answer: Answer, call: Call
    ) -> None:
        tenant, call.disclose, client, _ = standing
        call.tenant = tenant.name
        room = self._bodies.room(client)
        try:
            request = await read_chat(fields, receive, self._limits.body_bytes, room)
            if known is not None:
                call.started = known.last_byte
            call.stream, call.model = request.stream, self._router.label(request.model) or UNKNOWN_MODEL
            if WISHES.isdisjoint(fields):
                wishes = NO_WISHES
                call.to_native = self._usual_terms(tenant.name, max(request.priority or 0, tenant.priority))
            else:
                wishes = self._wishes(fields, request, tenant, call)
            plan = self._router.plan(request, tenant, wishes)
            to_nodes = to_node(fields, call.request_id)
            if self._account.tracer is not None:
                to_nodes = _traced(self._account.tracer, to_nodes, fields, call)
            with Watch(known, receive, answer.is_ended):
                if request.stream:
                    answer.hold(self._limits.hold_headers_s)
                await self._stages.pause()
                course = self._course
                to_serve = course.request(plan, request.body, tenant, to_nodes, call)
                refused = await course.serve(to_serve, answer, call)
                if refused is not None:
                    await course.make_do(refused, to_serve, request, tenant, answer, call)
        finally:
            room.close()

    def _wishes(self, fields: Fields, request: ChatRequest, tenant: Tenant, call: Call) -> Controls:
        """Of a client that has some of its own. Raises ApiError 400, 403."""
        call.timings = asked(fields, call.disclose, request.stream, request.counted)
        call.to_native = terms(tenant, self._fleet.salts.of(tenant.name), request.priority, fields).encode()
        return controls(fields, self._fleet.regions if tenant.regions is None else tenant.regions)

    async def _other(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        fields = fields_of(scope["headers"])
        self._hosts.check(fields.get(b"host"))
        if (scope["method"], scope["path"]) == ("OPTIONS", "*"):  # of the server as a whole (RFC 9110 section 9.3.7)
            await answer.give(Whole(204, [(b"allow", b"GET, HEAD, POST, OPTIONS")], b""))
            return
        await self._rest(scope, receive, answer.forward)

    def _report(self, error: Exception, answer: Answer) -> None:
        """Where it happened, but not what it says: messages may quote what a client sent."""
        places = traceback.extract_tb(error.__traceback__)[-6:]
        self._log.record(
            {
                "event": "error",
                "request_id": answer.request_id.decode("ascii"),
                "error": type(error).__name__,
                "at": [f"{place.filename.rpartition('/')[2]}:{place.lineno} {place.name}" for place in places],
            }
        )


def _address(scope: Scope) -> str:
    """Who shares one part of what is bounded for all, where there are no tenants."""
    client = scope.get("client")
    return ANONYMOUS.name if client is None else address_key(client[0])


def _refused_by_listener(refused: ApiError, answer: Answer, call: Call) -> None:
    call.status = answer.status or refused.status
    call.client_gone, call.code = False, refused.code


def _traced(tracer: Tracer, to_nodes: Headers, fields: Fields, call: Call) -> Headers:
    call.trace = tracer.begin(fields.get(TRACEPARENT))
    return [field for field in to_nodes if field[0] != TRACEPARENT] + [(TRACEPARENT, call.trace.context.encode())]


__all__ = ["CHAT_PATH", "ROUTED", "AsgiApp", "Gateway", "Message", "Receive", "Scope", "Send"]
