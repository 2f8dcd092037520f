"""The older completions, several answers at once, and tokens over HTTP."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from typing import Any

import orjson
import pytest

from edgeproxy.protocol.node.report import REPORT_HEADER, decode
from engine.api import NodeApp
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, MODEL, Call, chat_call, says, serving, until

PROMPT = "Once upon a time"
AFTER = " there was a fox."


def goes_on(tokenizer: Tokenizer, text: str = AFTER, prompt: str = PROMPT) -> FakeExecutor:
    """Says `text` after the prompt, and then ends."""
    ids = [*tokenizer.encode(prompt + text), tokenizer.eos_ids[-1]]
    return FakeExecutor(script=lambda history: ids[min(len(history), len(ids) - 1)], built_for=LIMITS)


def post(app: NodeApp, path: str, **fields: Any) -> Call:
    return Call(app, "POST", path, orjson.dumps({"model": MODEL, **fields}))


def completion(app: NodeApp, **fields: Any) -> Call:
    return post(app, "/v1/completions", **{"prompt": PROMPT, **fields})


@pytest.mark.parametrize("as_ids", [False, True])
async def test_a_prompt_is_gone_on_with(tokenizer: Tokenizer, chat_template: ChatTemplate, as_ids: bool) -> None:
    prompt: Any = tokenizer.encode(PROMPT) if as_ids else PROMPT
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        value = (await completion(served.app, prompt=prompt).done()).json()
    assert value["object"] == "text_completion"
    assert value["choices"] == [{"index": 0, "text": AFTER, "logprobs": None, "finish_reason": "stop"}]
    assert value["usage"]["prompt_tokens"] == len(tokenizer.encode(PROMPT))


async def test_a_stream_says_the_same(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        call = await completion(served.app, stream=True, stream_options={"include_usage": True}).done()
    *chunks, usage = call.chunks()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == AFTER
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert usage["usage"]["completion_tokens"] == len(tokenizer.encode(AFTER)) + 1


async def test_prompts_side_by_side_are_answered_in_their_order(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    prompts = [PROMPT, PROMPT + " there"]
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        value = (await completion(served.app, prompt=prompts, n=2).done()).json()
    assert [choice["index"] for choice in value["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in value["choices"]] == [AFTER] * 2 + [AFTER.removeprefix(" there")] * 2
    assert value["usage"]["prompt_tokens"] == sum(len(tokenizer.encode(prompt)) for prompt in prompts)


async def test_the_prompt_comes_first_where_it_is_asked_for(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        both = (await completion(served.app, echo=True).done()).json()["choices"][0]
        alone = (await completion(served.app, echo=True, max_tokens=0).done()).json()
    assert both["text"] == PROMPT + AFTER
    assert (alone["choices"][0]["text"], alone["choices"][0]["finish_reason"]) == (PROMPT, "length")
    assert alone["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("most", [0, 3])
async def test_log_probabilities_of_the_prompt(tokenizer: Tokenizer, chat_template: ChatTemplate, most: int) -> None:
    other = FakeExecutor(script=lambda history: 500, built_for=LIMITS)  # whatever the model would say instead
    async with serving(other, tokenizer, chat_template) as served:
        value = (await completion(served.app, echo=True, logprobs=2, max_tokens=most).done()).json()
    told = value["choices"][0]["logprobs"]
    assert told["tokens"][: len(tokenizer.encode(PROMPT))] == [
        tokenizer.name_of(token) for token in tokenizer.encode(PROMPT)
    ]
    assert len(told["tokens"]) == len(tokenizer.encode(PROMPT)) + most
    assert told["token_logprobs"][0] is None
    assert all(isinstance(value, float) for value in told["token_logprobs"][1:])
    assert told["text_offset"][:2] == [0, len(told["tokens"][0])]
    assert value["usage"]["completion_tokens"] == most
    assert value["usage"]["prompt_tokens"] == len(tokenizer.encode(PROMPT))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"best_of": 1, "n": True}, "n"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [49152]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [1.0, 2.5]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": "yes"}, "echo"),
    ],
)
async def test_what_is_wrong_is_named(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any], param: str
) -> None:
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        call = await completion(served.app, **fields).done()
    assert (call.status, call.json()["error"]["param"]) == (400, param)


async def test_numbers_that_are_whole_are_tokens_however_they_are_written(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    ids = tokenizer.encode(PROMPT)
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        for prompt in (ids, list(map(float, ids)), [list(map(float, ids))]):
            call = await completion(served.app, prompt=prompt, best_of=1.0, n=1.0).done()
            assert call.json()["usage"]["prompt_tokens"] == len(ids)
        back = await post(served.app, "/detokenize", tokens=list(map(float, ids))).done()
        assert back.json() == {"prompt": PROMPT}


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_find_the_prompt_computed(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    fake = FakeExecutor(script=says(tokenizer, "Hello there."), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template) as served:
        content = "word " * 60
        call = await chat_call(served.app, n=3, content=content, stream=stream, seed=7).done()
        prompt = len(tokenizer.encode(chat_template.render([{"role": "user", "content": content}])))
    texts: Counter[int] = Counter()
    if stream:
        for chunk in call.chunks():
            texts[chunk["choices"][0]["index"]] += len(chunk["choices"][0]["delta"].get("content", ""))
        assert texts == {index: len("Hello there.") for index in range(3)}
    else:
        value = call.json()
        assert [choice["message"]["content"] for choice in value["choices"]] == ["Hello there."] * 3
        assert value["usage"]["prompt_tokens"] == prompt
        assert value["usage"]["completion_tokens"] == 3 * (len(tokenizer.encode("Hello there.")) + 1)
    run = sum(len(row.tokens) for plan in fake.plans for row in plan.rows)
    assert run < prompt + 2 * 32  # of the others only what fills no block
    assert {row.opens.seed for plan in fake.plans for row in plan.rows if row.opens} == {7, 8, 9}


async def test_leaving_ends_all_answers(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    fake = FakeExecutor(script=says(tokenizer, "on", ends=False), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template) as served:
        call = chat_call(served.app, n=3, stream=True, max_tokens=300)
        await call.text_holds(b'"index":2')
        call.leave()
        async with asyncio.timeout(20):
            while served.engine.live:  # noqa: ASYNC110 - state of another thread
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_several_answers_is_no_error_of_the_node(
    tokenizer: Tokenizer, chat_template: ChatTemplate, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    gate = threading.Semaphore(0)
    fake = FakeExecutor(script=says(tokenizer, "on", ends=False), built_for=LIMITS, gate=gate)
    async with serving(fake, tokenizer, chat_template) as served:
        call = chat_call(served.app, n=3, stream=stream, max_tokens=100)
        await until(lambda: served.engine.load().running == 3, gate)
        call.leave()
        await until(lambda: not served.engine.live, gate)
        await call.done()  # raises what the listener would log
    gc.collect()
    assert caplog.messages == []


async def test_several_answers_of_an_engine_that_fails_are_one_error(
    tokenizer: Tokenizer, chat_template: ChatTemplate, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeExecutor(script=says(tokenizer, "on", ends=False), built_for=LIMITS, fails_at=9)
    async with serving(fake, tokenizer, chat_template) as served:
        call = await chat_call(served.app, n=3, max_tokens=300).done()
        assert (call.status, call.json()["error"]["code"]) == (500, "engine_failed")
    gc.collect()
    assert caplog.messages == ["the engine failed"]


async def test_tokens_are_told_and_read_back(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        text = "Grüße 💡<|im_end|>"
        told = (await post(served.app, "/tokenize", prompt=text, return_token_strs=True).done()).json()
        assert told["tokens"] == tokenizer.encode(text)
        assert (told["count"], len(told["token_strs"]), told["max_model_len"]) == (len(told["tokens"]),) * 2 + (512,)
        back = (await post(served.app, "/detokenize", tokens=told["tokens"]).done()).json()
        assert back == {"prompt": text}
        messages = [{"role": "user", "content": "hi"}]
        chat = (await post(served.app, "/tokenize", messages=messages).done()).json()
        assert chat["tokens"] == tokenizer.encode(chat_template.render(messages))
        both = await post(served.app, "/tokenize", messages=messages, prompt=text).done()
        assert (both.status, both.json()["error"]["param"]) == (400, "prompt")
        for path, fields in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/detokenize", {"tokens": [49152]})):
            assert (await post(served.app, path, **fields).done()).status == 400


async def test_the_document_of_what_it_answers(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(goes_on(tokenizer), tokenizer, chat_template) as served:
        value = (await Call(served.app, "GET", "/openapi.json").done()).json()
    assert value["openapi"].startswith("3.1")
    assert set(value["paths"]) >= {path for path in served.app._routes if path.startswith("/v1/")}


async def test_an_answer_goes_on_with_the_last_message(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}]
    fake = goes_on(tokenizer, " three.", chat_template.render(messages, False).removesuffix("<|im_end|>\n"))
    async with serving(fake, tokenizer, chat_template) as served:
        call = await chat_call(served.app, messages=messages, continue_final_message=True).done()
    assert call.json()["choices"][0]["message"]["content"] == " three."


async def test_a_requests_own_other_answers_are_not_told_as_waiting(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    fake = FakeExecutor(script=says(tokenizer, "Hello there."), built_for=LIMITS)
    async with serving(fake, tokenizer, chat_template) as served:
        call = await chat_call(served.app, n=4, stream=True, max_tokens=4).done()
        assert decode(call.headers[REPORT_HEADER]).waiting == 0


@pytest.mark.parametrize("queue", [0, 2, 64])
@pytest.mark.parametrize("stream", [False, True])
async def test_more_answers_than_there_is_room_for_come_in_turn(
    tokenizer: Tokenizer, chat_template: ChatTemplate, queue: int, stream: bool
) -> None:
    fake = FakeExecutor(script=lambda history: 30, built_for=LIMITS)
    prompts = [[number] * 20 for number in range(1, 25)]
    strict = [(b"x-latency-budget-ms", b"60000"), (b"x-latency-policy", b"refuse")]
    body = {"model": MODEL, "prompt": prompts, "n": 4, "max_tokens": 100, "ignore_eos": True, "stream": stream}
    async with serving(fake, tokenizer, chat_template, queue_length=queue) as served:
        call = await Call(served.app, "POST", "/v1/completions", orjson.dumps(body), strict).done()
        assert call.status == 200, call.body
        assert served.engine.live == 0
    if stream:
        chunks = [choice for chunk in call.chunks() for choice in chunk["choices"]]
        finished = [choice["index"] for choice in chunks if choice["finish_reason"]]
        assert sorted(finished) == list(range(96))
        return
    value = call.json()
    assert [choice["finish_reason"] for choice in value["choices"]] == ["length"] * 96
    assert value["usage"]["completion_tokens"] == 96 * 100
    assert value["usage"]["prompt_tokens"] == 24 * 20


async def test_of_prompts_of_which_one_never_fits_none_is_begun(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    fake = goes_on(tokenizer)
    async with serving(fake, tokenizer, chat_template) as served:
        long = await completion(served.app, prompt=[[1], [1] * 600, [1]]).done()
        alone = await completion(served.app, prompt=[1] * 600).done()
        much = await completion(served.app, max_tokens=600).done()
    told = [(call.status, call.json()["error"]["code"], call.json()["error"]["param"]) for call in (long, alone, much)]
    code = "context_length_exceeded"
    assert told == [(400, code, "prompt[1]"), (400, code, "prompt"), (400, code, "max_tokens")]
    assert not fake.plans
