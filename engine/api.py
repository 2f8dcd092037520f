"""A node's HTTP face: the OpenAI endpoints, health, and what the proxy asks for. Plain ASGI."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from edgeproxy.protocol.bearer import bearer_token
from edgeproxy.protocol.node.blocks import PREFIX_HEADER
from edgeproxy.protocol.node.report import (
    REPORT_HEADER,
    TIMING_HEADER,
    TOKEN_HEADER,
    TOKENS_HEADER,
    NodeState,
    encode_tokens,
)
from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.node.request import decode as request_terms
from edgeproxy.protocol.node.resume import FIELD, STREAM_HEADER, Resume, decode_resume
from edgeproxy.protocol.openai.chat import model_list, model_view
from edgeproxy.protocol.openai.decoding import Decoding
from edgeproxy.protocol.openai.errors import ApiError, invalid
from edgeproxy.protocol.openai.schema import parse_json
from edgeproxy.protocol.openai.sse import MEDIA_TYPE
from edgeproxy.protocol.trace_context import RESPONSE as TRACERESPONSE
from engine.answer import Choices
from engine.answering import Notes, Stream, whole
from engine.chat import answer_id, created
from engine.feed import READERS, TooManyReaders
from engine.hosts import Hosts
from engine.http import JSON, Bodies, ClientGone, Exchange, Headers, Receive, Scope, Send
from engine.kinds import CHAT, Kind
from engine.node import Node
from engine.orca import FORMAT_HEADER, load_metrics
from engine.orca import HEADER as LOAD_HEADER
from engine.refusals import too_many

if TYPE_CHECKING:
    from engine.traces import Traces

logger = logging.getLogger(__name__)

STREAM: Headers = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_UNSAFE_IN_HEADER = re.compile(r"[^A-Za-z0-9_.\[\]-]")
_IGNORED_CHARS = 64
_OPEN = ("/healthz", "/readyz")
"""For load balancers and supervisors, who have no secrets."""

Handler = Callable[[Exchange], Awaitable[None]]


class ApiLimits(NamedTuple):
    body_bytes: int = 8 * 2**20
    bodies_bytes: int = 256 * 2**20
    """Of all requests together, to the end of their answers."""
    requests: int = 512
    """Requests handled at the same time, running and waiting ones."""


class NodeApp:
    def __init__(
        self,
        node: Node,
        hosts: Hosts,
        token: bytes | None,
        *,
        limits: ApiLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        traces: Traces | None = None,
    ) -> None:
        """token: what all paths but those of health ask for; None where anybody who can connect may ask.

        traces: where they are collected.
        """
        self._traces = traces
        self._node = node
        self._hosts = hosts
        self._token = token
        self._limits = limits or ApiLimits()
        self._clock = clock
        self._bodies = Bodies(self._limits.bodies_bytes)
        self._started_at = created()
        self.busy = 0
        """Requests that are being answered."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completions),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/v1/models": ("GET", self._models),
            "/openapi.json": ("GET", self._openapi),
            "/healthz": ("GET", self._health),
            "/readyz": ("GET", self._ready),
            "/node/v1/status": ("GET", self._status),
            "/node/v1/events": ("GET", self._events),
            "/metrics": ("GET", self._metrics),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"ASGI {scope['type']} scopes are not served")
        exchange = Exchange(scope, receive, send, self._clock(), self._always)
        self.busy += 1
        self._quiet.clear()
        try:
            await self._answer(exchange)
        except ClientGone:
            pass
        except ApiError as error:
            if exchange.started:
                raise
            with suppress(ClientGone):
                await exchange.respond(error.status, error.body(), (*JSON, *error.headers))
        finally:
            self.busy -= 1
            if not self.busy:
                self._quiet.set()

    async def quiet(self) -> None:
        """Until no request is being answered."""
        await self._quiet.wait()

    async def _answer(self, exchange: Exchange) -> None:
        try:
            self._hosts.check(exchange.header(b"host"))
            self._check_token(exchange)
            await self._handler(exchange)(exchange)
        except (ApiError, ClientGone):
            raise
        except Exception as error:
            logger.exception("request %s failed", exchange.request_id.decode())
            raise ApiError(500, "The node failed at this request; its log says why.", code="internal_error") from error

    def _handler(self, exchange: Exchange) -> Handler:
        """Raises ApiError 404 or 405."""
        path = exchange.path
        method, handler = self._routes.get(path, ("", self._models))
        if not method and path.startswith("/v1/models/"):
            method, handler = "GET", self._model
        if not method:
            raise ApiError(404, "There is no such path on this node.", code="unknown_url")
        if exchange.method != method and not (method == "GET" and exchange.method == "HEAD"):
            allow = b"GET, HEAD" if method == "GET" else method.encode()
            raise ApiError(405, f"This path takes {method}.", code="method_not_allowed", headers=((b"allow", allow),))
        return handler

    def _always(self, exchange: Exchange) -> Headers:
        """What the node says of itself with every answer; nothing to strangers."""
        if not self._trusts(exchange):
            return ()
        report = self._node.report(self._clock() - exchange.arrived)
        report = report._replace(waiting=max(report.waiting - exchange.siblings, 0))
        fields: Headers = ((REPORT_HEADER, report.encode()),)
        wanted = exchange.header(FORMAT_HEADER)
        load = load_metrics(wanted, report, self._node.cpu_use) if wanted else None
        return fields if load is None else (*fields, (LOAD_HEADER, load))

    async def _openapi(self, exchange: Exchange) -> None:
        from edgeproxy.protocol.openai.openapi import document

        await exchange.respond(200, orjson.dumps(document()))

    async def _health(self, exchange: Exchange) -> None:
        self._node.check_alive()
        await exchange.respond(200, b'{"status":"alive"}')

    async def _ready(self, exchange: Exchange) -> None:
        if self._node.state is not NodeState.READY:
            raise ApiError(503, f"This node is {self._node.state}{self._node.why}.", code=f"node_{self._node.state}")
        self._node.check_alive()
        await exchange.respond(200, b'{"status":"ready"}')

    async def _status(self, exchange: Exchange) -> None:
        await exchange.respond(200, orjson.dumps(self._node.status(self._clock() - exchange.arrived)))

    async def _metrics(self, exchange: Exchange) -> None:
        from engine.metrics import exposition  # most nodes are never scraped

        accept = exchange.header(b"accept").decode("latin-1")
        node = self._node
        body, media_type = exposition(node.report(0.0), node.gauges, accept, node.gpu, node.cpu_use)
        await exchange.respond(200, body, ((b"content-type", media_type.encode()),))

    async def _events(self, exchange: Exchange) -> None:
        if exchange.method == "HEAD":
            await exchange.respond(200, b"", STREAM)
            return
        try:
            reader = self._node.feed.reader(exchange.header(b"last-event-id").decode("ascii", "replace"))
        except TooManyReaders as error:
            raise too_many(READERS, "readers of its feed", "too_many_readers") from error
        try:
            async with exchange.watched(reader.leave):
                await exchange.start(200, STREAM)
                while event := await reader.next():
                    await exchange.write(event, more=True)
                await exchange.write(b"", more=False)
        finally:
            reader.leave()

    def _check_token(self, exchange: Exchange) -> None:
        """Who asks for more than health must bring the node token, as a bearer's where that is all a client can send.

        A wrong one is told of there too, so that a proxy's probe finds out. Raises ApiError 401.
        """
        open_to_all = exchange.path in _OPEN and not exchange.header(TOKEN_HEADER)
        if not open_to_all and not self._trusts(exchange):
            raise ApiError(
                401,
                f"This node answers its proxy: ask that, or send the node token (EDGEPROXY_NODE_TOKEN of its process) "
                f"in {TOKEN_HEADER.decode()} or as a bearer token.",
                code="node_token",
                headers=((b"www-authenticate", b"Bearer"),),
            )

    def _trusts(self, exchange: Exchange) -> bool:
        if self._token is None:
            return True
        given = exchange.header(TOKEN_HEADER) or bearer_token(exchange.header(b"authorization"))
        return hmac.compare_digest(given, self._token)

    async def _models(self, exchange: Exchange) -> None:
        await exchange.respond(200, model_list([model_view(self._node.model, self._started_at, "edgeproxy")]))

    async def _model(self, exchange: Exchange) -> None:
        self._check_model(exchange.path.removeprefix("/v1/models/"))
        await exchange.respond(200, orjson.dumps(model_view(self._node.model, self._started_at, "edgeproxy")))

    def _check_model(self, model: str) -> None:
        if model != self._node.model:
            raise ApiError(404, f"This node serves '{self._node.model}' only.", code="model_not_found", param="model")

    async def _chat(self, exchange: Exchange) -> None:
        await self._generate(exchange, CHAT)

    async def _completions(self, exchange: Exchange) -> None:
        from engine.completions import COMPLETIONS  # most nodes are asked for chats alone

        await self._generate(exchange, COMPLETIONS)

    async def _generate(self, exchange: Exchange, kind: Kind) -> None:
        terms = request_terms(exchange.field)
        async with self._posted(exchange) as value:
            await self._generated(exchange, kind, terms, value)

    async def _generated(self, exchange: Exchange, kind: Kind, terms: Terms, value: dict[str, Any]) -> None:
        resume = _resume(value.pop(FIELD, None))
        request = kind.read(value)
        if resume is not None and not request.stream:
            raise invalid("only streams can be resumed.", FIELD, "invalid_parameter_combination")
        self._check_model(request.model)
        name = answer_id(kind.prefix)
        choices = await kind.open(self._node.chat(), request, name, terms, resume)
        traced = nullcontext() if self._traces is None else self._traces.request(exchange, choices)
        async with exchange.watched(choices.abort):
            with traced:
                try:
                    await self._told(exchange, kind, request, choices, name, resume)
                finally:
                    choices.abort()

    async def _told(
        self,
        exchange: Exchange,
        kind: Kind,
        request: Decoding,
        choices: Choices,
        name: str,
        resume: Resume | None,
    ) -> None:
        told = request.top_logprobs is not None
        if not request.stream:
            first = await choices.next()
            headers = (*JSON, *self._answer_headers(exchange, request, choices), *self._terms(exchange, choices))
            form = kind.whole(name, created(), request.model, self._node.numerics)
            await exchange.respond(200, await whole(choices, first, form, told=told), headers)
            return
        notes = self._notes(exchange, choices, resume)
        name, since = (name, created()) if resume is None else (resume.id, resume.created)
        events = kind.stream(name, since, request.model, self._node.numerics, request.include_usage)
        stream = Stream(choices, events, told=told, notes=notes, resume=resume)
        first = await choices.next()
        exchange.siblings = choices.siblings
        headers = (*STREAM, *self._answer_headers(exchange, request, choices))
        await stream.send(exchange, headers, first, lambda: self._terms(exchange, choices))

    async def _tokenize(self, exchange: Exchange) -> None:
        from engine.tokens import tokenized

        terms = request_terms(exchange.field)
        async with self._posted(exchange) as value:
            self._check_tokens_model(value)
            await exchange.respond(200, await tokenized(value, self._node.chat(), terms.salt))

    async def _detokenize(self, exchange: Exchange) -> None:
        from engine.tokens import detokenized

        async with self._posted(exchange) as value:
            self._check_tokens_model(value)
            await exchange.respond(200, detokenized(value, self._node.chat()))

    def _check_tokens_model(self, value: dict[str, Any]) -> None:
        if value.get("model") is None:
            value["model"] = self._node.model
        if not isinstance(value["model"], str):
            raise invalid("'model' must be a string.", "model", "invalid_type")
        self._check_model(value["model"])

    @asynccontextmanager
    async def _posted(self, exchange: Exchange) -> AsyncIterator[dict[str, Any]]:
        """The object that a request brings; there is room for it until it is answered. Raises ApiError, ClientGone."""
        if self.busy > self._limits.requests:
            raise too_many(self._limits.requests, "requests open", "too_many_requests")
        with self._bodies.room() as take:
            yield parse_json(await exchange.json_body(self._limits.body_bytes, take))

    def _notes(self, exchange: Exchange, choices: Choices, resume: Resume | None) -> Notes | None:
        """Where the proxy asks for them: a seed and token ids tell more of a text than its client is to know."""
        if not exchange.header(STREAM_HEADER) or not choices.resumable:
            return None
        answer = choices.first
        return Notes(answer.opening) if resume is None else Notes(None, resume.chars, answer.again)

    def _answer_headers(self, exchange: Exchange, request: Decoding, choices: Choices) -> Headers:
        answer = choices.first
        traced: Headers = ((TRACERESPONSE, exchange.traced),) if exchange.traced else ()
        ignored = (*choices.ignored, *request.ignored)
        fields: Headers = (*traced, (b"x-edge-ignored", _names(ignored))) if ignored else traced
        if answer.prefix is not None:
            fields += ((PREFIX_HEADER, answer.prefix.encode()),)
        usage = answer.usage()
        return (*fields, (TOKENS_HEADER, encode_tokens(usage.prompt, usage.cached)))

    def _terms(self, exchange: Exchange, choices: Choices) -> Headers:
        """Where the time to the first token went, up to now."""
        answer = choices.first
        timing = answer.timing
        if timing is None:
            return ()
        parse_s = answer.submitted - exchange.arrived
        first_s = max(0.0, self._clock() - answer.submitted - timing.queue_s - timing.prefill_s)
        terms = {"parse": parse_s, "queue": timing.queue_s, "prefill": timing.prefill_s, "first": first_s}
        value = ", ".join(f"{term};dur={seconds * 1000:.3f}" for term, seconds in terms.items())
        return ((TIMING_HEADER, value.encode()),)


def _resume(value: Any) -> Resume | None:
    """Raises ApiError 400."""
    if value is None:
        return None
    try:
        return decode_resume(value)
    except ValueError as error:
        raise invalid(f"'{FIELD}' {error}.", FIELD, "invalid_value") from error


def _names(names: Iterable[str]) -> bytes:
    """Names of fields as the client spelled them, in characters that a header may hold."""
    return ", ".join(_UNSAFE_IN_HEADER.sub("_", name[:_IGNORED_CHARS]) for name in names).encode()
