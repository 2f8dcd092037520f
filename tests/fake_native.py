"""A native node in small: tells notes, resumes, and dies where it is told to. Its text depends on the seed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from tests.fake_exchange import DONE, SSE, Exchange
from tests.fake_node import FakeNode

PIECES = ["Hello", ", ", "wör", None, "ld 🌍", " and", ' "error": {', None, None, "한국어", "!"]
"""Text of each token; None where it is held back until a later one."""
FIRST_ID = 500
End = Callable[[Exchange, list[bytes]], Awaitable[None]]
"""What becomes of an answer's events."""


def tokens(seed: int) -> list[tuple[int, str | None]]:
    """(id, text), in an order that only the seed decides."""
    order = list(range(len(PIECES)))
    Random(seed).shuffle(order)
    return [(FIRST_ID + index, PIECES[index]) for index in order]


def text_of(seed: int) -> str:
    return "".join(piece or "" for _, piece in tokens(seed))


@dataclass
class Native:
    """Answers chat requests for one FakeNode. Each answer ends as the first of `ends` says, the last without fault."""

    node: FakeNode
    seed: int
    ends: list[End] = field(default_factory=list)
    resumes: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, x: Exchange) -> None:
        assert x.received.header(b"x-edge-stream") == b"1"
        resume = x.received.json.get("resume")
        if resume is not None:
            self.resumes.append(resume)
            if resume["numerics"] != self.node.numerics:
                await x.whole(409, b'{"error":{"message":"no","type":"invalid_request_error"}}')
                return
        await x.head(200, [*SSE, x.report_header()])
        end = self.ends.pop(0) if self.ends else complete
        await end(x, self.events(x, resume))

    def events(self, x: Exchange, resume: dict[str, Any] | None) -> list[bytes]:
        """Each with its note before it, as two pieces."""
        seed = self.seed if resume is None else resume["seed"]
        name = f"chatcmpl-{self.node.port}" if resume is None else resume["id"]
        created = self.node.port if resume is None else resume["created"]
        script = tokens(seed)
        done = 0 if resume is None else len(resume["ids"])
        if resume is not None:
            assert resume["ids"] == [token for token, _ in script[:done]]
            assert resume["max_tokens"] == 77
        text, chars = text_of(seed), 0 if resume is None else resume["chars"]
        replayed = sum(len(piece or "") for _, piece in script[:done])

        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            value = {"id": name, "created": created, "model": "m", "choices": choices, **more}
            return b"data: " + orjson.dumps(value) + b"\n\n"

        found = [chunk({"role": "assistant", "content": ""})] if resume is None else []
        for index, (token, piece) in enumerate(script[done:], done):
            opening = f"seed={seed} max=77 " if index == 0 and resume is None else ""
            found.append(f":e {opening}chars={chars} ids={token}\n".encode())
            replayed += len(piece or "")
            if replayed > chars:
                found.append(chunk({"content": text[chars:replayed]}))
                chars = replayed
        if replayed > chars:
            found.append(chunk({"content": text[chars:]}))
        if resume is None or not resume["finished"]:
            found.append(chunk({}, "stop"))
        if x.received.json.get("stream_options"):
            usage = {"prompt_tokens": 7, "completion_tokens": len(script)}
            found.append(
                chunk({}, usage=usage).replace(
                    b'"choices":[{"index":0,"delta":{},"finish_reason":null}]', b'"choices":[]'
                )
            )
        return [*found, DONE]


async def complete(x: Exchange, events: list[bytes]) -> None:
    await x.events(*events)
    await x.end()


def cut(after: int, more: int = 0) -> End:
    """The connection ends after so many events and `more` bytes of the next."""

    async def end(x: Exchange, events: list[bytes]) -> None:
        rest = b"".join(events[after:])[:more]
        await x.events(*events[:after], *([rest] if rest else []))

    return end


def stall(after: int) -> End:
    async def end(x: Exchange, events: list[bytes]) -> None:
        await x.events(*events[:after])
        await x.forever()

    return end


def resumed_by_gate(after: int) -> End:
    """Silent after so many events, until the node's gate opens."""

    async def end(x: Exchange, events: list[bytes]) -> None:
        await x.events(*events[:after])
        await x.node.gate.wait()
        await x.events(*events[after:])
        await x.end()

    return end


def give_up(after: int) -> End:
    async def end(x: Exchange, events: list[bytes]) -> None:
        error = b'data: {"error":{"message":"engine","type":"server_error","param":null,"code":"aborted"}}\n\n'
        await x.events(*events[:after], error)
        await x.end()

    return end
