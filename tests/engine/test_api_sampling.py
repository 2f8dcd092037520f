"""The fields about sampling, from the request's JSON to the executor's slot and back as log-probabilities."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from engine.step import Sampling
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, chat_call, says, serving

TEXT = "Grüße 💡 and more."


def executor(tokenizer: Tokenizer, **options: Any) -> FakeExecutor:
    return FakeExecutor(script=says(tokenizer, TEXT, **options), built_for=LIMITS)


def opened(fake: FakeExecutor) -> Sampling:
    return next(row.opens for plan in fake.plans for row in plan.rows if row.opens)


async def asked(tokenizer: Tokenizer, template: ChatTemplate, fields: dict[str, Any]) -> tuple[Sampling, int]:
    """What the executor's slot was opened with, and the prompt's length."""
    fake = executor(tokenizer)
    async with serving(fake, tokenizer, template) as served:
        call = await chat_call(served.app, more=fields).done()
        assert call.status == 200
    return opened(fake), call.json()["usage"]["prompt_tokens"]


async def test_every_field_reaches_the_slot(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    fields = {
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"77": -3},
        "min_tokens": 2,
        "stop_token_ids": [5],
        "logprobs": True,
        "top_logprobs": 3,
    }
    found, prompt = await asked(tokenizer, chat_template, fields)
    assert (found.min_p, found.repetition, found.frequency, found.presence) == (0.1, 1.2, 0.5, -0.5)
    assert (found.bias, found.min_tokens, found.logprobs) == (((77, -3.0),), 2, 3)
    assert found.stop_ids == (*tokenizer.eos_ids, 5)
    assert found.first == prompt


async def test_what_is_not_asked_for_changes_nothing(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    found, prompt = await asked(tokenizer, chat_template, {"seed": 1})
    assert found == Sampling(seed=1, stop_ids=tuple(tokenizer.eos_ids), first=prompt)


async def test_eos_alone_is_ignored_where_asked(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    fields = {"ignore_eos": True, "stop_token_ids": [5], "max_tokens": 8}
    assert (await asked(tokenizer, chat_template, fields))[0].stop_ids == (5,)


@pytest.mark.parametrize("fields", [{"logit_bias": {"49152": 1}}, {"stop_token_ids": [49152]}])
async def test_an_id_outside_the_vocabulary_is_refused(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any]
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        call = await chat_call(served.app, more=fields).done()
    assert (call.status, call.json()["error"]["param"]) == (400, *fields)


async def test_a_stop_id_is_counted_but_is_no_part_of_the_text(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    ids = tokenizer.encode(TEXT)
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        value = (await chat_call(served.app, more={"stop_token_ids": [ids[-1]], "logprobs": True}).done()).json()
    choice = value["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (TEXT.removesuffix("."), "stop")
    assert value["usage"]["completion_tokens"] == len(ids)
    assert len(choice["logprobs"]["content"]) == len(ids) - 1


async def test_stop_strings_count_from_the_first_text_after_min_tokens(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    first = len(tokenizer.encode(TEXT))
    async with serving(executor(tokenizer, ends=False), tokenizer, chat_template) as served:
        call = await chat_call(served.app, more={"stop": ["r"], "min_tokens": 1, "max_tokens": 40}).done()
        late = await chat_call(served.app, more={"stop": ["."], "min_tokens": first + 2, "max_tokens": 40}).done()
    assert call.json()["choices"][0]["message"]["content"] == "Grüße 💡 and mo"
    assert late.json()["choices"][0]["message"]["content"] == TEXT + ".."


def content_of(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return list((choice["logprobs"] or {"content": []})["content"])


def raw(entries: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(bytes(entry["bytes"] or []) for entry in entries)


@pytest.mark.parametrize("top", [0, 3])
async def test_log_probabilities_spell_the_text(tokenizer: Tokenizer, chat_template: ChatTemplate, top: int) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        value = (await chat_call(served.app, logprobs=True, top_logprobs=top).done()).json()
    content = content_of(value["choices"][0])
    assert raw(content) == TEXT.encode()
    assert len(content) == value["usage"]["completion_tokens"] - 1
    for entry in content:
        assert entry["logprob"] == -0.5
        assert [other["logprob"] for other in entry["top_logprobs"]] == [-0.5, -1.5, -2.5][:top]
        assert top == 0 or entry["top_logprobs"][0] | {"top_logprobs": entry["top_logprobs"]} == entry


@pytest.mark.parametrize("slowly", [False, True])  # else several tokens come in one chunk
async def test_a_streamed_chunk_carries_the_tokens_that_begin_in_it(
    tokenizer: Tokenizer, chat_template: ChatTemplate, slowly: bool
) -> None:
    fake, gate = executor(tokenizer), threading.Semaphore(0) if slowly else None
    fake.gate = gate

    async def let_steps_end() -> None:
        while gate is not None:
            gate.release()
            await asyncio.sleep(0.003)

    async with serving(fake, tokenizer, chat_template) as served:
        steps = asyncio.create_task(let_steps_end())
        chunks = (await chat_call(served.app, stream=True, logprobs=True).done()).chunks()
        whole = (await chat_call(served.app, logprobs=True).done()).json()["choices"][0]["logprobs"]
        steps.cancel()
    choices = [chunk["choices"][0] for chunk in chunks]
    told = spelled = 0  # bytes; a token may end within a character that a later chunk tells
    for choice in choices:
        end = told + len(choice["delta"].get("content", "").encode())
        for entry in content_of(choice):
            assert told <= spelled < end
            spelled += len(entry["bytes"] or [])
        assert spelled >= end
        told = end
    assert [entry for choice in choices for entry in content_of(choice)] == whole["content"]


@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_is_told_of_tokens_behind_a_stop_string(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    async with serving(executor(tokenizer, ends=False), tokenizer, chat_template) as served:
        call = await chat_call(served.app, stream=stream, stop=" more", logprobs=True).done()
    choices = [chunk["choices"][0] for chunk in call.chunks()] if stream else call.json()["choices"]
    found = [entry for choice in choices for entry in content_of(choice)]
    assert raw(found).decode() == TEXT.removesuffix(" more.")
    assert all(left != right for left, right in pairwise(found))


async def test_the_sdk_reads_what_is_told(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        whole = (await chat_call(served.app, logprobs=True, top_logprobs=2).done()).json()
        chunks = (await chat_call(served.app, stream=True, logprobs=True).done()).chunks()
    told = ChatCompletion.model_validate(whole).choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert [len(token.top_logprobs) for token in told.content] == [2] * len(told.content)
    streamed = [ChatCompletionChunk.model_validate(chunk).choices[0].logprobs for chunk in chunks]
    tokens = [token.token for logprobs in streamed if logprobs for token in logprobs.content or []]
    assert tokens == [token.token for token in told.content]


async def test_without_being_asked_nothing_is_told(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        chunks = (await chat_call(served.app, stream=True).done()).chunks()
        whole = (await chat_call(served.app).done()).json()
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in [*chunks, whole])
