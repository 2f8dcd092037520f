"""What a scripted node does, by the name of the model that it is asked for."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

import orjson

from edgeproxy.protocol.trace_context import FIELD, RESPONSE, TraceContext, decode
from tests.fake_exchange import ANSWER, DONE, FINISH, JSON, ROLE, SSE, STREAM, USAGE, WORDS, Exchange, chunk, error_body


async def ok(x: Exchange) -> None:
    timing = (b"server-timing", b"queue;dur=1.5, prefill;dur=12.25, first;dur=20")
    if not x.stream:
        await x.whole(200, ANSWER, [*JSON, timing])
        return
    await x.head(200, [*SSE, timing])
    counted = (x.received.json.get("stream_options") or {}).get("include_usage")
    await x.events(ROLE, *WORDS, FINISH, *([USAGE] if counted else []), DONE)
    await x.end()


async def tells_spans(x: Exchange) -> None:
    """Of its own, below the caller's span."""
    caller = decode(x.received.header(FIELD))
    assert caller is not None
    await _told(x, caller._replace(span=7))


async def tells_other_spans(x: Exchange) -> None:
    """In a trace that is not the caller's."""
    await _told(x, TraceContext(7, 7))


async def _told(x: Exchange, span: TraceContext) -> None:
    timing = (b"server-timing", b"queue;dur=1.5, prefill;dur=12.25, first;dur=20")
    await x.whole(200, ANSWER, [*JSON, timing, (RESPONSE, span.encode())])


async def slow(x: Exchange) -> None:
    await x.node.gate.wait()
    await ok(x)


async def role_then_stall(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE)
    await x.node.gate.wait()
    await x.events(*WORDS, FINISH, DONE)
    await x.end()


async def stall_after_3(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS)
    await x.forever()


async def cut_after_3(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS)


async def cut_mid_event(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS, FINISH[:20])


async def cut_mid_utf8(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS, WORDS[2][: WORDS[2].index("🌍".encode()) + 2])


async def cut_before_content(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE)


async def cut_json(x: Exchange) -> None:
    await x.head(200, JSON, len(ANSWER))
    await x.raw(ANSWER[:40])


async def unframed_cut_json(x: Exchange) -> None:
    """Truncated, and nothing in HTTP says so: the body ends where the connection does."""
    await x.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + ANSWER[:40])


async def unframed_cut_stream(x: Exchange) -> None:
    await x.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + ROLE + WORDS[0])


async def close_at_once(x: Exchange) -> None:
    return


async def headers_then_nothing(x: Exchange) -> None:
    await x.head(200, SSE if x.stream else JSON)
    await x.forever()


async def comments_only(x: Exchange) -> None:
    await x.head(200, SSE)
    while True:
        await x.body(b": still here\n\n")
        await asyncio.sleep(0.02)


async def nothing(x: Exchange) -> None:
    await x.forever()


async def refuse_429(x: Exchange) -> None:
    limits = [(b"retry-after", b"7"), (b"retry-after-ms", b"6500"), (b"x-ratelimit-remaining-requests", b"0")]
    await x.whole(429, error_body("busy", "rate_limit_error", "rate_limit_exceeded"), [*JSON, *limits])


async def refuse_its_budget(x: Exchange) -> None:
    """As a native node whose prefill is too slow for it."""
    error = orjson.loads(error_body("the prompt alone takes too long", "rate_limit_error", "latency_budget_exceeded"))
    error["error"]["recovery"] = {"expected_ms": 900}
    await x.whole(429, orjson.dumps(error), [*JSON, (b"x-should-retry", b"false")])


async def refuse_429_once(x: Exchange) -> None:
    await (refuse_429 if x.node.seen[x.received.model] == 1 else ok)(x)


async def short_of_memory(x: Exchange) -> None:
    """There is room for an answer of eight tokens."""
    if x.received.json.get("max_tokens", 100) <= 8:
        await ok(x)
        return
    error = orjson.loads(error_body("no room", "rate_limit_error", "oom_predicted"))
    error["error"]["recovery"] = {"max_tokens_that_fit": 8, "retry_after_ms": 250}
    await x.whole(429, orjson.dumps(error), [*JSON, (b"retry-after-ms", b"250")])


async def fail_500(x: Exchange) -> None:
    await x.whole(500, error_body("secret node detail at 10.0.0.7", "server_error"))


async def wait_then_500(x: Exchange) -> None:
    await x.node.gate.wait()
    await fail_500(x)


async def fail_503_text(x: Exchange) -> None:
    await x.whole(503, b"upstream connect error", [(b"content-type", b"text/plain")])


async def refuse_400(x: Exchange) -> None:
    await x.whole(400, error_body("temperature must not be negative", "invalid_request_error"))


async def garbage(x: Exchange) -> None:
    await x.raw(b"\x00\x01\x02 this is no HTTP\r\n\r\n")


async def garbage_body(x: Exchange) -> None:
    await x.whole(200, b"<html>welcome</html>", [(b"content-type", b"text/html")])


async def error_event(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, b"data: " + error_body("out of luck", "server_error", 500) + b"\n\n")
    await x.end()


async def bad_request_event(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(b"data: " + error_body("prompt too long", "invalid_request_error", 400) + b"\n\n", DONE)
    await x.end()


async def late_error_event(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS, b"data: " + error_body("out of luck", "server_error") + b"\n\n")
    await x.end()


async def trickle_bytes(x: Exchange) -> None:
    await x.head(200, SSE)
    for i in range(len(STREAM)):
        await x.body(STREAM[i : i + 1])
        await asyncio.sleep(0)
    await x.end()


async def no_done(x: Exchange) -> None:
    """Some servers end a stream at its finish reason."""
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS, FINISH)
    await x.end()


async def crlf_and_comments(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.body(b": hello\n\n" + STREAM.replace(b"\n", b"\r\n"))
    await x.end()


async def coded_stream(x: Exchange) -> None:
    """A node that compresses although it was asked not to."""
    await x.head(200, [*SSE, (b"content-encoding", b"gzip")])
    await x.body(gzip.compress(STREAM))
    await x.end()


async def coded_cut(x: Exchange) -> None:
    await x.head(200, [*SSE, (b"content-encoding", b"gzip")])
    await x.body(gzip.compress(STREAM)[:40])


async def huge_json(x: Exchange) -> None:
    piece = b" " * 2**20
    await x.head(200, JSON, 17 * len(piece) + len(ANSWER))
    for _ in range(17):
        await x.raw(piece)
    await x.raw(ANSWER)
    await x.end()


async def hop_by_hop(x: Exchange) -> None:
    more = [
        (b"connection", b"keep-alive, retry-after"),
        (b"keep-alive", b"timeout=5"),
        (b"proxy-authenticate", b"Basic"),
        (b"retry-after", b"1"),
        (b"set-cookie", b"session=1"),
        (b"server", b"fake/1"),
        (b"x-node-report", b"{}"),
        (b"x-request-id", b"from-the-node"),
    ]
    await x.whole(200, ANSWER, [*JSON, *more])


async def endless(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE)
    word = chunk({"content": "x" * 4096})
    while True:
        await x.body(word)
        x.node.seen["endless-bytes"] = x.node.seen.get("endless-bytes", 0) + len(word)
        await asyncio.sleep(0)


async def chatter_after_done(x: Exchange) -> None:
    await x.head(200, SSE)
    await x.events(ROLE, *WORDS, FINISH, DONE, *WORDS)
    await x.events(*WORDS, DONE)
    await x.end()


async def refuse_401(x: Exchange) -> None:
    await x.whole(401, error_body("Incorrect API key provided", "invalid_api_key"))


BEHAVIOURS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    "ok": ok,
    "slow": slow,
    "role-then-stall": role_then_stall,
    "stall-after-3": stall_after_3,
    "cut-after-3": cut_after_3,
    "cut-mid-event": cut_mid_event,
    "cut-mid-utf8": cut_mid_utf8,
    "cut-before-content": cut_before_content,
    "cut-json": cut_json,
    "unframed-cut-json": unframed_cut_json,
    "unframed-cut-stream": unframed_cut_stream,
    "close-at-once": close_at_once,
    "headers-then-nothing": headers_then_nothing,
    "nothing": nothing,
    "comments-only": comments_only,
    "429": refuse_429,
    "429-once": refuse_429_once,
    "over-budget": refuse_its_budget,
    "short-of-memory": short_of_memory,
    "500": fail_500,
    "wait-then-500": wait_then_500,
    "503-text": fail_503_text,
    "400": refuse_400,
    "401": refuse_401,
    "chatter-after-done": chatter_after_done,
    "garbage": garbage,
    "garbage-body": garbage_body,
    "error-event": error_event,
    "bad-request-event": bad_request_event,
    "late-error-event": late_error_event,
    "trickle-bytes": trickle_bytes,
    "no-done": no_done,
    "crlf-and-comments": crlf_and_comments,
    "coded-stream": coded_stream,
    "coded-cut": coded_cut,
    "huge-json": huge_json,
    "hop-by-hop": hop_by_hop,
    "endless": endless,
}
