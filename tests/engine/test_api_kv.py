"""What a node's HTTP face tells of the KV it holds, and whose it is."""

from __future__ import annotations

from edgeproxy.protocol.node.blocks import HeldBlocks, decode, decode_prefix
from edgeproxy.protocol.openai.sse import SseParser
from engine.api import NodeApp
from engine.feed import READERS
from engine.hosts import Hosts
from engine.node import Node
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.serving import (
    MODEL,
    TEXT,
    Call,
    chat_call,
    executor,
    serving,
)

TOKEN_FIELD = [(b"x-node-token", b"secret")]


async def test_usage_tells_what_was_reused_in_the_next_turn(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        first = {"role": "user", "content": "Tell me something about the sea, and about the ships on it."}
        answers = []
        for messages in (
            [first],
            [first, {"role": "assistant", "content": TEXT}, {"role": "user", "content": "More?"}],
        ):
            answers.append((await chat_call(served.app, more={"messages": messages}).done()).json()["usage"])
        status = served.node.status(0.0)
    cached = [usage["prompt_tokens_details"]["cached_tokens"] for usage in answers]
    known = answers[0]["prompt_tokens"] + answers[0]["completion_tokens"] - 1
    assert cached == [0, known // 16 * 16]
    assert status["kv_blocks_reused"] == cached[1] // 16


async def test_the_feed_of_blocks_follows_what_requests_do_until_the_node_drains(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        feed = Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD)
        await feed.text_holds(b"event: snapshot\nid: ")
        await chat_call(served.app, headers=TOKEN_FIELD).done()
        await feed.text_holds(b"event: change\n")
        held = HeldBlocks()
        for event in SseParser().feed(feed.body):
            held.apply(decode(event.data))
        assert held.position is not None
        last = (b"last-event-id", held.position.encode())
        again = Call(served.app, "GET", "/node/v1/events", headers=[*TOKEN_FIELD, last])
        await chat_call(served.app, content="How are you, and how are all of yours?", headers=TOKEN_FIELD).done()
        await again.text_holds(b"event: change\n")
        await feed.text_holds(again.body)
        assert b"snapshot" not in again.body
        served.node.drain()
        await feed.done()
        await again.done()
    assert (feed.status, feed.headers[b"content-type"], feed.ended) == (200, b"text/event-stream", True)


async def test_an_answer_names_the_blocks_of_its_prompt(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        call = await chat_call(served.app, headers=TOKEN_FIELD).done()
        snapshot = await served.engine.feed.reader().next()
    prefix = decode_prefix(call.headers[b"x-node-prefix"])
    assert prefix.blocks == call.json()["usage"]["prompt_tokens"] // 16 > 0
    held = HeldBlocks()
    held.apply(decode(SseParser().feed(snapshot or b"")[0].data))
    assert held.left(prefix) == prefix


async def test_requests_of_different_salts_share_no_kv(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    cached = []
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        for salt in (b"aa", b"aa", b"bb", b"bb"):
            call = await chat_call(served.app, headers=[*TOKEN_FIELD, (b"x-node-salt", salt)]).done()
            cached.append(call.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0)
    assert cached == [False, True, False, True]


async def test_who_leaves_the_feed_makes_room_in_it(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        calls = [Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD) for _ in range(READERS)]
        for call in calls:
            await call.text_holds(b"snapshot")
        refused = await Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD).done()
        calls[0].leave()
        await calls[0].done()
        again = Call(served.app, "GET", "/node/v1/events", headers=TOKEN_FIELD)
        await again.text_holds(b"snapshot")
        for call in [*calls[1:], again]:
            call.leave()
            await call.done()
    assert (refused.status, refused.json()["error"]["code"]) == (429, "too_many_readers")


async def test_the_feed_needs_an_engine(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template, token=b"secret") as served:
        head = await Call(served.app, "HEAD", "/node/v1/events", headers=TOKEN_FIELD).done()
    early = await Call(NodeApp(Node(MODEL), Hosts("127.0.0.1"), None), "GET", "/node/v1/events").done()
    assert (head.status, head.body, early.status) == (200, b"", 503)
