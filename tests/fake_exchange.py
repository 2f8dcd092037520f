"""One answer of a scripted node in the making, and what such answers are made of."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from edgeproxy.protocol.node.blocks import PREFIX_HEADER, Prefix
from edgeproxy.protocol.node.report import REPORT_HEADER, NodeReport, NodeState

if TYPE_CHECKING:
    from tests.fake_node import FakeNode

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
        return json.loads(self.body) if self.body else {}

    @property
    def model(self) -> str:
        return str(self.json.get("model", ""))

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)


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
USAGE = chunk({}, choices=[], usage={"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10})
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
