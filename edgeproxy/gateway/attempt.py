"""One try at one node, until it has shown content or failed. Nothing of it has reached the client by then."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

import orjson

from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.account import Call, ending_of
from edgeproxy.gateway.answer import Whole, whole
from edgeproxy.gateway.paths import COMPLETIONS
from edgeproxy.observe.trace import Trace
from edgeproxy.protocol.node.blocks import PREFIX_HEADER, Prefix, decode_prefix
from edgeproxy.protocol.node.foreign import shaped_error, timings_of
from edgeproxy.protocol.node.report import REPORT_HEADER, TIMING_HEADER, TOKENS_HEADER, decode_tokens
from edgeproxy.protocol.openai.answers import is_chunk, is_completion
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import STREAM_HEADERS, Headers, find, media_type, to_client
from edgeproxy.protocol.openai.sse import DONE, MEDIA_TYPE, Event, SseError, SseParser, has_content
from edgeproxy.protocol.trace_context import RESPONSE as TRACERESPONSE
from edgeproxy.protocol.trace_context import decode as decode_trace
from edgeproxy.routing.budget import node_terms
from edgeproxy.upstream.h1 import Response, SilentNode, UpstreamError
from edgeproxy.upstream.node import Node

MAX_WHOLE_BYTES = 16 * 2**20
"""An answer that is not streamed is held back to its end up to this size, so that a truncated one can be retried."""
MAX_HELD_BYTES = 2**20
"""Of a stream, before its first content."""
_JSON = ((b"content-type", b"application/json"),)
_SOON = ((b"retry-after", b"1"),)
_BODY = (b"content-type", b"content-encoding", b"content-language")
KEPT_EVENTS = 4
"""The last events of a stream say how it ended: finish, usage, `[DONE]`."""


class Failed(Exception):
    """This node did not serve the request; another may. `reason` is one of few words: it becomes a label."""

    def __init__(self, reason: str, answer: Whole, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer
        """What the client is told if no other node does better."""
        self.retry_after_s = retry_after_s

    @property
    def busy(self) -> bool:
        """The node refused, soundly: no sign of a fault."""
        return self.answer.status == 429


@dataclass(slots=True)
class Begun:
    """A stream whose first content is here."""

    response: Response
    headers: Headers
    held: bytes
    """Of a body that is passed on unseen."""
    events: list[Event]
    """So far, of one that is read."""
    parser: SseParser | None
    """None: a body that is passed on unseen, because it is coded, or too large to hold."""
    recent: deque[Event]
    numerics: str | None = None
    """Of a native node's stream: which others can go on with it."""


async def attempt(node: Node, headers: Headers, body: bytes, call: Call, limits: GatewayLimits) -> Whole | Begun:
    """Raises Failed. After anything but Begun the response is closed."""
    call.heard = False
    try:
        response = await node.pool.request(b"POST", call.path, headers, node.body(body))
        call.heard = True
        try:
            fields = response.fields
            if REPORT_HEADER in fields:
                node.observe(response.headers, response.first_byte_at)
            numerics = node.numerics if node.native else None  # now: while we wait, probes look again
            _heed(fields, call)
            if response.status != 200:
                outcome: Whole | Begun = await _refused(response)
            elif media_type(fields.get(b"content-type")) != MEDIA_TYPE:
                body_now = response.whole()
                readable = _readable(fields)
                if body_now is None:
                    outcome = await _collected(response, readable, call)
                else:
                    outcome = _judged(body_now, response, readable, call)
            elif call.stream:
                # A native node that goes on with a stream may have nothing left to send but its end.
                outcome = await _until_content(response, fields, call, limits, may_be_empty=REPORT_HEADER in fields)
            else:
                raise _malformed("the node answered with a stream, which nobody asked for")
        except BaseException:
            response.close()
            raise
    except SilentNode as error:
        raise Failed("silent", _gateway_error("the node fell silent while the request waited", status=504)) from error
    except UpstreamError as error:
        raise Failed(error.phase, _gateway_error("the node could not be reached or broke off")) from error
    except SseError as error:
        raise _malformed("the node sent an event that is too long") from error
    call.sent_at = response.sent_at
    if isinstance(outcome, Begun):
        response.replaceable = False
        outcome.numerics = numerics
    return outcome


def _heed(fields: Mapping[bytes, bytes], call: Call) -> None:
    """What an answer's head tells of the request."""
    call.terms = node_terms(fields.get(TIMING_HEADER))
    call.node_traces = call.trace is not None and _tells_spans(fields.get(TRACERESPONSE), call.trace)
    call.prompt_tokens = call.cached_tokens = call.prefix = None
    if TOKENS_HEADER in fields:
        call.prompt_tokens, call.cached_tokens = decode_tokens(fields[TOKENS_HEADER])
    if PREFIX_HEADER in fields:
        call.prefix = _prefix(fields[PREFIX_HEADER])


def _readable(fields: Mapping[bytes, bytes]) -> bool:
    return fields.get(b"content-encoding", b"identity") == b"identity"


async def _refused(response: Response) -> Whole:
    """An answer that is no 200: to the client where it is the client's business. Raises Failed."""
    status, body = response.status, await _bounded(response)
    if status == 429:
        raise Failed("busy", Whole(status, to_client(response.headers), body), retry_after_s=_retry_after(response))
    if status >= 500 or status < 400:  # 3xx: a node that redirects is none, and is never followed
        raise Failed(f"status_{status // 100}xx", _node_error(response))
    if status == 401:
        raise _unauthorized()
    shaped = shaped_error(status, body)
    if shaped is not body:
        return Whole(
            status, [*_JSON, *(field for field in to_client(response.headers) if field[0] not in _BODY)], shaped
        )
    return Whole(status, to_client(response.headers), body)


async def _until_content(
    response: Response, fields: Mapping[bytes, bytes], call: Call, limits: GatewayLimits, *, may_be_empty: bool
) -> Whole | Begun:
    headers = [*to_client(response.headers), *STREAM_HEADERS]
    recent: deque[Event] = deque(maxlen=KEPT_EVENTS)
    if not _readable(fields):
        held = await response.read()
        call.first_at = response.heard_at
        return Begun(response, headers, held, [], None, recent)
    parser, events, size, chunks = SseParser(), list[Event](), 0, 0
    while data := await response.read():
        size += len(data)
        shown = False
        for event in parser.feed(data):
            events.append(event)
            if not event.comment:
                recent.append(event)
                if shown:
                    continue
                if event.data == DONE:
                    if not (chunks or may_be_empty):
                        raise _malformed("the node's stream was none of completions")
                    shown = True
                    continue
                value = _parsed(event)
                refused = _refusal(value, event.data)
                if refused is not None:
                    response.close()
                    return refused
                chunks += is_chunk(value)
                shown = has_content(value)
        if shown:
            call.first_at = response.heard_at
            return Begun(response, headers, b"", events, parser, recent)
        if size > MAX_HELD_BYTES:
            raise _malformed("the node sent too much before its first content")
        if monotonic() - response.sent_at > limits.first_byte_s:
            raise Failed("timeout", _gateway_error("the node sent no content in time", status=504))
    raise Failed("cut", _gateway_error("the node ended its answer before any content"))


async def _collected(response: Response, readable: bool, call: Call) -> Whole | Begun:
    """An answer in one piece that has not come to its end yet."""
    pieces, size = list[bytes](), 0
    while data := await response.read():
        pieces.append(data)
        size += len(data)
        if size > MAX_WHOLE_BYTES:
            call.first_at = monotonic()
            return Begun(response, to_client(response.headers), b"".join(pieces), [], None, deque())
    return _judged(b"".join(pieces), response, readable, call)


def _judged(body: bytes, response: Response, readable: bool, call: Call) -> Whole:
    """Raises Failed where a whole answer is of no use to who asked: SDKs would fail at it, or show nothing."""
    if not readable:
        call.first_at = _hidden_first(response, call)
        return Whole(200, to_client(response.headers), body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise _malformed("the node's answer was not JSON, or not all of it") from None
    if not isinstance(value, dict):
        raise _malformed("the node's answer was none of this API")
    if "error" in value and (refused := _refusal(value, body)) is not None:
        return refused
    if call.stream:
        raise _malformed("the node answered in one piece where a stream was asked for")
    if call.path in COMPLETIONS and not is_completion(value):
        raise _malformed("the node's answer was none of this API")
    call.ending = ending = ending_of(value)
    if call.prompt_tokens is None:
        call.prompt_tokens, call.cached_tokens = ending.counts()
    if "timings" in value and (timed := timings_of(value)) is not None:
        call.terms = {"prefill": timed.prefill}
        call.first_at = max(response.sent_at, monotonic() - timed.decode)
    else:
        call.first_at = _hidden_first(response, call)
    return Whole(200, to_client(response.headers), body)


def _hidden_first(response: Response, call: Call) -> float | None:
    """When the first token of an answer that is not streamed was made, told by the node's terms; None without them."""
    terms = call.terms
    if "queue" not in terms or "prefill" not in terms or "first" not in terms:
        return None
    return response.sent_at + (call.rtt_s or 0.0) + sum(terms.values())


def _tells_spans(value: bytes | None, trace: Trace) -> bool:
    """Whether the node sends spans of its own in this request's trace."""
    found = None if value is None else decode_trace(value)
    return found is not None and found.sampled and found.trace == trace.context.trace


def _prefix(value: bytes) -> Prefix | None:
    """What cannot be read counts as nothing said."""
    try:
        return decode_prefix(value)
    except ValueError:
        return None


async def _bounded(response: Response) -> bytes:
    """The body of an error: small, or of no use."""
    pieces, size = list[bytes](), 0
    while data := await response.read():
        size += len(data)
        if size > MAX_HELD_BYTES:
            raise _malformed("the node's error was too long")
        pieces.append(data)
    return b"".join(pieces)


def _parsed(event: Event) -> object:
    try:
        return orjson.loads(event.data)
    except orjson.JSONDecodeError:
        raise _malformed("the node sent an event that is not JSON") from None


def _refusal(value: object, body: bytes) -> Whole | None:
    """An error in place of content: what the client did wrong is its answer, with a true status; else it is a failure
    like any other. `value`: `body` parsed. Raises Failed."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return None
    code = error.get("code")
    status = code if isinstance(code, int) and not isinstance(code, bool) else 0
    if status == 429:
        raise Failed("busy", Whole(429, list(_JSON), body))
    if status == 401:
        raise _unauthorized()
    if 400 <= status < 500 or (not status and error.get("type") == "invalid_request_error"):
        return Whole(status or 400, list(_JSON), body)
    raise Failed("error_event", _gateway_error("the node failed before any content"))


def _unauthorized() -> Failed:
    """It is the proxy that the node does not know: the client's own key is none of the node's business."""
    message = "the node refused the proxy's own credentials; the operator has to mend what its `api_key_env:` names"
    return Failed("unauthorized", whole(ApiError(502, message, "upstream_unauthorized")))


def _malformed(cause: str) -> Failed:
    return Failed("malformed", _gateway_error(cause, code="upstream_malformed"))


def _gateway_error(
    message: str, status: int = 502, code: str = "upstream_failed", again: tuple[tuple[bytes, bytes], ...] = _SOON
) -> Whole:
    return whole(ApiError(status, f"{message}; try again", code, headers=again))


def _node_error(response: Response) -> Whole:
    """5xx bodies speak of the node's insides; what a client can use is the status and when to come back."""
    status = 503 if response.status == 503 else 502
    again = tuple(field for field in response.headers if field[0] in (b"retry-after", b"retry-after-ms"))
    return _gateway_error(f"the node answered {response.status}", status, again=again or _SOON)


def _retry_after(response: Response) -> float | None:
    """Seconds; None where absent or a date (RFC 9110 section 10.2.3)."""
    for name, unit in ((b"retry-after-ms", 1e-3), (b"retry-after", 1.0)):
        value = find(response.headers, name) or b""
        if value.isdigit() and len(value) < 10:
            return int(value) * unit
    return None
