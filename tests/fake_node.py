"""A scripted node: the *model name* of a request picks what goes wrong.

Nothing here waits for a time to pass: behaviours that wait do so for `FakeNode.gate`, or for the connection to end.
`requests` holds what arrived, `abandoned` the models whose answer the peer did not wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from edgeproxy.protocol.node.blocks import PREFIX_HEADER, Prefix
from edgeproxy.protocol.node.report import REPORT_HEADER, NodeReport, NodeState

Headers = list[tuple[bytes, bytes]]
SSE: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON: Headers = [(b"content-type", b"application/json")]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Received:
    method: str
    path: str
    headers: Headers
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body) if self.body else {}

    @property
    def model(self) -> str:
        return str(self.json.get("model", ""))

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


@dataclass
class FakeNode:
    port: int = 0
    requests: list[Received] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    """How often each model was asked for."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    ready: bool = True
    overrides: dict[str, str] = field(default_factory=dict)
    """Model name -> the behaviour that this node shows for it, instead of the one so named."""
    numerics: str = "n"
    pages: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Path of a GET -> what another kind of server answers there."""
    blocked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a behaviour waits for its peer to read."""
    _server: asyncio.Server | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chats(self) -> list[Received]:
        return [received for received in self.requests if received.method == "POST"]

    async def __aenter__(self) -> FakeNode:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Refuses new connections and resets the open ones, as a killed process does."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self.until(lambda: not self._writers)
        await self._server.wait_closed()
        self._server = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until something happened here that makes `condition` true."""
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(condition)

    async def _note(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while received := await _read_request(reader):
                self.requests.append(received)
                await self._note()
                if not await self._answer(received, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            await self._note()

    async def _answer(self, received: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on. The peer's leaving ends the behaviour, as it would end a generation."""
        exchange = Exchange(self, received, writer)
        if received.method == "GET":
            if received.path in self.pages:
                await exchange.whole(*self.pages[received.path])
            else:
                await exchange.report()
            return True
        model = received.model
        self.seen[model] = self.seen.get(model, 0) + 1
        work = asyncio.ensure_future(BEHAVIOURS[self.overrides.get(model, model)](exchange))
        eof = asyncio.ensure_future(reader.read(1))
        await asyncio.wait((work, eof), return_when=asyncio.FIRST_COMPLETED)
        left = eof.done() or isinstance(work.exception(), ConnectionError)
        if left:
            self.abandoned.append(model)
        for task in (work, eof):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await task
        return exchange.complete and not left


PREFIX = Prefix(b"p" * 16, 1)
"""Every prompt's, by this node's account."""


class Exchange:
    """One answer in the making."""

    def __init__(self, node: FakeNode, received: Received, writer: asyncio.StreamWriter) -> None:
        self.node, self.received, self._writer = node, received, writer
        self.stream = bool(received.json.get("stream"))
        self.complete = False
        self._chunked = False

    async def head(self, status: int, headers: Headers, length: int | None = None) -> None:
        self._chunked = length is None
        framing = b"transfer-encoding: chunked" if self._chunked else b"content-length: %d" % (length or 0)
        fields = [*headers, (PREFIX_HEADER, PREFIX.encode())] if status == 200 else headers
        lines = [b"HTTP/1.1 %d Scripted" % status, framing, *(b"%s: %s" % item for item in fields)]
        await self.raw(b"\r\n".join(lines) + b"\r\n\r\n")

    async def body(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self._chunked else data)

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        self.node.blocked.set()
        await self._writer.drain()
        self.node.blocked.clear()

    async def end(self) -> None:
        if self._chunked:
            await self.raw(b"0\r\n\r\n")
        self.complete = True

    async def whole(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        await self.head(status, headers or JSON, len(body))
        await self.body(body)
        await self.end()

    async def events(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.body(piece)

    async def forever(self) -> None:
        await asyncio.Event().wait()

    async def report(self) -> None:
        await self.whole(200 if self.node.ready else 503, b"{}", [*JSON, self.report_header()])

    def report_header(self) -> tuple[bytes, bytes]:
        state = NodeState.READY if self.node.ready else NodeState.WARMING
        report = NodeReport(state, "fake", self.node.numerics, 0, 0, 0, 100, 100, 0, 16, 1000.0, 1.0, 1, 0.0)
        return REPORT_HEADER, report.encode()


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(value | more) + b"\n\n"


ROLE = chunk({"role": "assistant", "content": ""})
WORDS = [chunk({"content": text}) for text in ("Hello", ", ", "wörld 🌍")]
FINISH = chunk({}, "stop")
STREAM = b"".join([ROLE, *WORDS, FINISH, DONE])
ANSWER = orjson.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello, wörld 🌍"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
)


def error_body(message: str, kind: str, code: Any = None) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    line = await reader.readline()
    if not line:
        return None
    method, path, _ = line.decode("latin-1").split(" ", 2)
    headers: Headers = []
    while (line := await reader.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    length = int(dict(headers).get(b"content-length", b"0"))
    return Received(method, path, headers, await reader.readexactly(length))


async def ok(x: Exchange) -> None:
    timing = (b"server-timing", b"queue;dur=1.5, prefill;dur=12.25, first;dur=20")
    if not x.stream:
        await x.whole(200, ANSWER, [*JSON, timing])
        return
    await x.head(200, [*SSE, timing])
    await x.events(ROLE, *WORDS, FINISH, DONE)
    await x.end()


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
    "short-of-memory": short_of_memory,
    "500": fail_500,
    "wait-then-500": wait_then_500,
    "503-text": fail_503_text,
    "400": refuse_400,
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
