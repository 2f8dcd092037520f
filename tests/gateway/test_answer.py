"""Headers are held until content; after the hold, comments keep the connection and failures are told in events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from edgeproxy.config import GatewayLimits
from edgeproxy.gateway.answer import Answer, Whole
from edgeproxy.protocol.openai.sse import SseParser
from tests.fake_exchange import STREAM
from tests.gateway.drive import Edge, begin, chat, edge

SHORT_HOLD = GatewayLimits(hold_headers_s=0.02)
COMMENT = b": keep-alive\n"


class Client:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.came = asyncio.Event()

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        self.came.set()

    async def comments(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.body.count(COMMENT) < count:
                self.came.clear()
                await self.came.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def test_role_alone_does_not_release_the_headers(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("role-then-stall", stream=True))
        await e.near.until(lambda: e.near.blocked.is_set() or bool(e.near.chats))
        await asyncio.sleep(0.05)  # long enough for a relay that does not wait
        assert exchange.status == 0
        e.near.gate.set()
        assert (await exchange.done()).body == STREAM


async def hold_expired(e: Edge, model: str) -> Any:
    exchange = begin(e.app, chat(model, stream=True))
    await exchange.until(lambda x: COMMENT in x.body)
    assert exchange.status == 200
    assert exchange.header(b"content-type") == b"text/event-stream; charset=utf-8"
    return exchange


async def test_after_the_hold_comments_and_then_the_same_stream(tmp_path: Path) -> None:
    async with edge(tmp_path, SHORT_HOLD) as e:
        exchange = await hold_expired(e, "slow")
        e.near.gate.set()
        await exchange.done()
        assert exchange.body.replace(COMMENT, b"") == STREAM
        raws = [event for event in SseParser().feed(exchange.body) if not event.comment]
        assert b"".join(event.raw for event in raws) == STREAM


async def test_failover_stays_invisible_after_the_hold(tmp_path: Path) -> None:
    async with edge(tmp_path, SHORT_HOLD) as e:
        e.far.overrides["slow"] = "ok"
        e.near.overrides["slow"] = "wait-then-500"
        exchange = await hold_expired(e, "slow")
        e.near.gate.set()
        await exchange.done()
        assert exchange.body.replace(COMMENT, b"") == STREAM


async def test_failure_after_the_hold_is_an_event_without_done(tmp_path: Path) -> None:
    async with edge(tmp_path, SHORT_HOLD) as e:
        e.near.overrides["slow"] = "wait-then-500"
        e.far.overrides["slow"] = "500"
        exchange = await hold_expired(e, "slow")
        e.near.gate.set()
        await exchange.done()
        (event,) = exchange.events()
        assert event["error"]["code"] == "upstream_failed"
        assert exchange.ended


async def test_answers_that_are_not_streamed_are_never_commented(tmp_path: Path) -> None:
    async with edge(tmp_path, SHORT_HOLD) as e:
        exchange = begin(e.app, chat("slow"))
        await e.near.until(lambda: e.near.seen == {"slow": 1})
        await asyncio.sleep(0.1)  # five holds
        assert exchange.status == 0
        e.near.gate.set()
        assert (await exchange.done()).json["object"] == "chat.completion"


async def test_comments_go_on_until_content_and_stop_there() -> None:
    client = Client()
    answer = Answer(client.send, b"id", keep_alive_s=0.01)
    answer.hold(0.0)
    await client.comments(3)
    await answer.begin([], b"data: 1\n\n")
    await asyncio.sleep(0.05)
    await answer.end()
    assert client.body.endswith(COMMENT + b"data: 1\n\n")
    assert [message["type"] for message in client.messages].count("http.response.start") == 1


async def test_content_waits_for_a_comment_that_is_being_sent() -> None:
    taken: list[bytes] = []
    sending, reading = asyncio.Event(), asyncio.Event()

    async def send(message: Any) -> None:
        if message.get("body") == COMMENT:
            sending.set()
            await reading.wait()
        taken.append(message.get("body", b""))

    answer = Answer(send, b"id", keep_alive_s=10)
    answer.hold(0.0)
    await sending.wait()
    content = asyncio.ensure_future(answer.begin([], b"data: 1\n\n"))
    for _ in range(10):  # turns of the loop in which it could push ahead
        await asyncio.sleep(0)
    assert taken == [b""]
    reading.set()
    await content
    assert taken == [b"", COMMENT, b"data: 1\n\n"]


async def test_error_of_several_lines_becomes_one_event() -> None:
    client = Client()
    answer = Answer(client.send, b"id", keep_alive_s=10)
    answer.hold(0.0)
    await client.comments(1)
    await answer.give(Whole(400, [], b'{\n "error": {\n  "message": "no"}\n}'))
    assert client.body == COMMENT + b'data: {"error":{"message":"no"}}\n\n'


async def test_closed_answer_says_no_more() -> None:
    client = Client()
    answer = Answer(client.send, b"id", keep_alive_s=0.01)
    answer.hold(0.0)
    await client.comments(1)
    answer.close()
    said = len(client.messages)
    await asyncio.sleep(0.05)
    assert len(client.messages) == said
