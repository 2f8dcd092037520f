"""A stream with calls, or one of a form, goes on at another node wherever it was cut, as the proxy counts it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from edgeproxy.gateway.transcript import Transcript
from edgeproxy.protocol.node.resume import with_resume
from edgeproxy.protocol.openai.sse import DONE, Event
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, MODEL, Call, Served, says, serving
from tests.engine.test_api_structured import SCHEMA, of
from tests.engine.test_api_tools import CLOCK, ONE, TWO, WEATHER, calls, put_together
from tests.engine.test_resume import ASKED, TOKEN, body, every_token_alone, stream

__all__ = ["every_token_alone"]
TOOLS = [WEATHER, CLOCK]
CASES: list[tuple[str, dict[str, Any]]] = [
    (f"I look it up.\n{TWO}", {"tools": TOOLS}),
    (TWO, {"tools": TOOLS, "tool_choice": "required"}),
    ("No.", {"tools": TOOLS, "tool_choice": "required", "temperature": 0}),
    ("Grüße 💡<tool_call>no call</tool_call> and more", {"tools": TOOLS}),
    (f"{ONE}\n{TWO}", {"tools": TOOLS, "tool_choice": "required"}),
    (TWO, {"tools": TOOLS, "max_tokens": 25}),
    ("Why, of course!", of(SCHEMA)),
]


def chunks(events: list[Event]) -> list[dict[str, Any]]:
    found = [orjson.loads(event.data) for event in events if not event.comment and event.data != DONE]
    return [chunk for chunk in found if chunk["choices"]]


async def resumed_everywhere(served: Served, raw: bytes, path: str = "/v1/chat/completions") -> int:
    call = Call(served.app, "POST", path, raw, ASKED)
    whole = await stream(served, raw) if path.endswith("chat/completions") else await events_of(call)
    expected = told(chunks(whole))
    tried = 0
    for cut in range(3, len(whole)):
        transcript = Transcript("fp_fake")
        transcript.take(whole[:cut])
        resume = transcript.resume()
        if resume is None:
            continue
        rest = await events_of(Call(served.app, "POST", path, with_resume(raw, resume), ASKED))
        assert rest[-1].data == DONE
        assert told(chunks([*whole[:cut], *rest])) == expected, cut
        tried += 1
    return tried


async def events_of(call: Call) -> list[Event]:
    from edgeproxy.protocol.openai.sse import SseParser

    await call.done()
    assert call.status == 200, call.body
    return SseParser().feed(call.body)


def told(found: list[dict[str, Any]]) -> Any:
    if found[0]["object"] == "text_completion":
        return "".join(chunk["choices"][0]["text"] for chunk in found), found[-1]["choices"][0]["finish_reason"]
    message = put_together(found)
    if message["finish"] == "length":
        return message["content"], [call["function"] for call in message["tool_calls"]], "length"
    return message["content"], calls(message), message["finish"]


@pytest.mark.parametrize(("text", "fields"), CASES)
async def test_a_stream_cut_anywhere_is_the_whole_one(
    tokenizer: Tokenizer, chat_template: ChatTemplate, text: str, fields: dict[str, Any]
) -> None:
    fake = FakeExecutor(script=says(tokenizer, text), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template, token=TOKEN) as served:
        assert await resumed_everywhere(served, body(**fields)) > 2


@pytest.mark.parametrize(("text", "fields"), CASES)
async def test_the_proxy_counts_the_tokens_that_the_usage_tells(
    tokenizer: Tokenizer, chat_template: ChatTemplate, text: str, fields: dict[str, Any]
) -> None:
    fake = FakeExecutor(script=says(tokenizer, text), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template, token=TOKEN) as served:
        events = await stream(served, body(**fields))
    transcript = Transcript("fp_fake")
    transcript.take(events)
    (usage,) = [
        chunk["usage"] for event in events if b'"choices":[]' in event.data if (chunk := orjson.loads(event.data))
    ]
    assert transcript.written == usage["completion_tokens"]


async def test_so_is_one_of_the_older_completions(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    ids = [*tokenizer.encode("Once upon a time there was a fox. 💡"), tokenizer.eos_ids[-1]]
    fake = FakeExecutor(script=lambda history: ids[min(len(history), len(ids) - 1)], built_for=LIMITS)
    raw = orjson.dumps({"model": MODEL, "prompt": "Once upon", "stream": True})
    async with serving(fake, tokenizer, chat_template, token=TOKEN) as served:
        assert await resumed_everywhere(served, raw, "/v1/completions") > 2


async def test_several_answers_carry_no_notes(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    fake = FakeExecutor(script=says(tokenizer, "Hi."), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template, token=TOKEN) as served:
        assert not any(event.comment for event in await stream(served, body(n=2)))
