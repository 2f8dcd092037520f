"""An engine on a scripted executor with a real tokenizer, and an ASGI client that can leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from edgeproxy.protocol.openai.sse import DONE, SseParser
from engine.api import ApiLimits, NodeApp
from engine.chat import Chat
from engine.executor.base import Limits
from engine.hosts import Hosts
from engine.http import Message
from engine.loop import EngineLoop
from engine.node import STALL_S, Node
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.traces import Traces
from tests.engine.fake_executor import FakeExecutor, Script

MODEL = "tiny"
PATIENCE_S = 20
TEXT = "Grüße 💡 and more."
LIMITS = Limits(slots=4, blocks=32, step_tokens=64, context=512, vocab=49152)
_HEADER = "<|im_start|>assistant\n"


def says(tokenizer: Tokenizer, text: str, *, ends: bool = True) -> Script:
    """A script that answers every prompt with `text` and then ends the turn, or goes on with full stops."""
    header = tokenizer.encode(_HEADER)
    tokens = tokenizer.encode(text)
    after = tokenizer.eos_ids[-1] if ends else tokenizer.encode(".")[0]

    def script(history: Sequence[int]) -> int:
        start = max(i for i in range(len(history)) if list(history[i : i + len(header)]) == header) + len(header)
        said = len(history) - start
        return tokens[said] if said < len(tokens) else after

    return script


@dataclass(frozen=True, slots=True)
class Served:
    app: NodeApp
    node: Node
    engine: EngineLoop
    chat: Chat


@asynccontextmanager
async def serving(
    executor: FakeExecutor,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    *,
    queue_length: int = 64,
    max_wait_s: float | None = None,
    token: bytes | None = None,
    limits: ApiLimits | None = None,
    stall_s: float = STALL_S,
    traces: Traces | None = None,
) -> AsyncIterator[Served]:
    engine = EngineLoop(executor, queue_length=queue_length, max_wait_s=max_wait_s)
    engine.start()
    chat = Chat(engine, tokenizer, template)
    node = Node(MODEL, stall_s)
    node.attach(engine, chat)
    node.ready()
    try:
        app = NodeApp(node, Hosts("127.0.0.1"), token, limits=limits, traces=traces)
        yield Served(app, node, engine, chat)
    finally:
        if executor.gate is not None:
            executor.gate.release(1000)
        engine.stop()


class Call:
    """One request to an ASGI application, answered in a task of its own."""

    def __init__(
        self,
        app: NodeApp,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Sequence[tuple[bytes, bytes]] = (),
        pieces: Sequence[bytes] | None = None,
    ) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.ended = False
        self._progress = asyncio.Event()
        self._gone = asyncio.Event()
        self._pieces = list(pieces if pieces is not None else [body])
        fields = [(b"host", b"127.0.0.1:8101"), (b"content-type", b"application/json")]
        given = {name for name, _ in headers}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [*(field for field in fields if field[0] not in given), *headers],
        }
        self._task = asyncio.create_task(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._gone.set()

    async def done(self) -> Call:
        async with asyncio.timeout(PATIENCE_S):
            await self._task
        return self

    async def text_holds(self, part: bytes) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while part not in self.body:
                self._progress.clear()
                await self._progress.wait()

    def json(self) -> dict[str, Any]:
        value = orjson.loads(self.body)
        assert isinstance(value, dict)
        return value

    def chunks(self) -> list[dict[str, Any]]:
        """The events of a stream that ended well."""
        events = SseParser().feed(self.body)
        assert events[-1].data == DONE
        return [orjson.loads(event.data) for event in events[:-1]]

    async def _receive(self) -> Message:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
            self.headers = dict(message["headers"])
        else:
            assert self.status
            assert not self.ended
            self.body += message["body"]
            self.ended = not message["more_body"]
        self._progress.set()


def chat_call(
    app: NodeApp,
    *,
    content: str = "hi",
    headers: Sequence[tuple[bytes, bytes]] = (),
    more: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Call:
    body = {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields, **(more or {})}
    return Call(app, "POST", "/v1/chat/completions", orjson.dumps(body), headers)


def executor(tokenizer: Tokenizer, text: str = TEXT, **options: Any) -> FakeExecutor:
    ends = options.pop("ends", True)
    return FakeExecutor(script=says(tokenizer, text, ends=ends), built_for=LIMITS, **options)


async def until(condition: Callable[[], bool], gate: threading.Semaphore | None = None) -> None:
    """Waits for another thread; each look at it lets one more step end, where there is a gate."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            if gate is not None:
                gate.release()
            await asyncio.sleep(0.001)


async def until_free(served: Served) -> None:
    await until(lambda: served.engine.load().blocks_spare == LIMITS.blocks)
