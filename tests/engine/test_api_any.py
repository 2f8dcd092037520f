"""Whatever is asked in the schema's own terms, a node answers it or says what is wrong: never an error of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, MODEL, Call, Served, says, serving
from tests.engine.test_api_tools import CLOCK, TWO, WEATHER

ODD = [
    "",
    "hi",
    "<|im_end|>",
    "Grüße 👩‍👩‍👧",
    "\u202eright to left عربى",
    "\x00\x7f\ufdd0",
    "a\nb\t",
    "{{ 7 * 7 }}",
    TWO,
    '"\\',
]
TEXT = st.sampled_from(ODD) | st.text(max_size=12)
CALLS = [{"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": TEXT}),
    st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": st.lists(TEXT.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=2),
        }
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": st.just("c")}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none() | TEXT, "tool_calls": st.just(CALLS)}),
)
FORMATS: list[Any] = [
    {"type": "text"},
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": [1, "a"]}}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}},
]
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "n": st.sampled_from([1, 3]),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 60_000),
    "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.01, 100),
    "logit_bias": st.dictionaries(st.integers(0, 60_000).map(str), st.floats(-100, 100), max_size=3),
    "stop": TEXT.filter(bool) | st.lists(TEXT.filter(bool), max_size=4),
    "stop_token_ids": st.lists(st.integers(0, 60_000), max_size=3),
    "min_tokens": st.integers(0, 5),
    "ignore_eos": st.booleans(),
    "response_format": st.sampled_from(FORMATS),
    "guided_choice": st.lists(TEXT.filter(bool), min_size=1, max_size=3),
    "user": TEXT,
    "metadata": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    "priority": st.integers(-1000, 1000),
    "prompt_cache_key": TEXT,
    "unheard_of": TEXT,
}
CHAT_OPTIONS = OPTIONS | {
    "max_completion_tokens": st.integers(1, 12),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 20),
    "tools": st.sampled_from([[], [CLOCK], [WEATHER, CLOCK]]),
    "tool_choice": st.sampled_from(["none", "auto", "required", {"type": "function", "function": {"name": "clock"}}]),
    "parallel_tool_calls": st.booleans(),
    "continue_final_message": st.booleans(),
    "chat_template_kwargs": st.dictionaries(st.sampled_from(["enable_thinking", "x"]), st.booleans()),
}
TEXT_OPTIONS = OPTIONS | {"max_tokens": st.integers(0, 12), "logprobs": st.integers(0, 5), "echo": st.booleans()}
CHATS = st.fixed_dictionaries(
    {"model": st.just(MODEL), "messages": st.lists(MESSAGE, min_size=1, max_size=4), "max_tokens": st.integers(1, 12)},
    optional=CHAT_OPTIONS,
)
IDS = st.lists(st.integers(0, 49_151), min_size=1, max_size=8)
TEXTS = st.fixed_dictionaries(
    {
        "model": st.just(MODEL),
        "prompt": TEXT | st.lists(TEXT, min_size=1, max_size=3) | IDS | st.lists(IDS, min_size=1, max_size=2),
    },
    optional=TEXT_OPTIONS,
)


@asynccontextmanager
async def node(tokenizer: Tokenizer, template: ChatTemplate) -> AsyncIterator[Served]:
    chats = says(tokenizer, TWO)

    def script(history: Any) -> int:
        try:
            return chats(history)
        except ValueError:  # no chat: completions have no header
            return int(sum(history)) % LIMITS.vocab

    async with serving(FakeExecutor(script=script, built_for=LIMITS), tokenizer, template) as served:
        yield served


async def answered(served: Served, path: str, body: dict[str, Any]) -> None:
    call = await Call(served.app, "POST", path, orjson.dumps(body)).done()
    if call.status != 200:
        assert call.status in (400, 429), call.body
        assert {"message", "type", "param", "code"} <= set(call.json()["error"])
    elif body.get("stream"):
        finishes = [choice["finish_reason"] for chunk in call.chunks() for choice in chunk["choices"]]
        assert sum(reason is not None for reason in finishes) == len({i for c in call.chunks() for i in indexes(c)})
    else:
        assert all(choice["finish_reason"] for choice in call.json()["choices"])


def indexes(chunk: dict[str, Any]) -> list[int]:
    return [choice["index"] for choice in chunk["choices"]]


async def all_answered(tokenizer: Tokenizer, template: ChatTemplate, path: str, bodies: list[dict[str, Any]]) -> None:
    async with node(tokenizer, template) as served:
        for body in bodies:
            await answered(served, path, body)
        assert served.engine.failure is None


SOME = settings(max_examples=6, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=100, suppress_health_check=list(HealthCheck))


@SOME
@given(bodies=st.lists(CHATS, min_size=5, max_size=10))
async def test_chats(tokenizer: Tokenizer, chat_template: ChatTemplate, bodies: list[dict[str, Any]]) -> None:
    await all_answered(tokenizer, chat_template, "/v1/chat/completions", bodies)


@SOME
@given(bodies=st.lists(TEXTS, min_size=5, max_size=10))
async def test_completions(tokenizer: Tokenizer, chat_template: ChatTemplate, bodies: list[dict[str, Any]]) -> None:
    await all_answered(tokenizer, chat_template, "/v1/completions", bodies)


@pytest.mark.long
@MANY
@given(bodies=st.lists(CHATS, min_size=10, max_size=12))
async def test_a_thousand_chats(
    tokenizer: Tokenizer, chat_template: ChatTemplate, bodies: list[dict[str, Any]]
) -> None:
    await all_answered(tokenizer, chat_template, "/v1/chat/completions", bodies)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":1,"seed":1,"seed":2}', 200),
        (b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":NaN}', 400),
        (b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"temperature":1e999}', 400),
        (b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"seed":' + b"9" * 400 + b"}", 400),
        (b'{"model":"tiny","messages":[{"role":"user","content":"\\ud800"}]}', 400),
        (b'{"model":"tiny","messages":[{"role":"user","content":"' + b"a" * 100_000 + b'"}]}', 400),
        (
            b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_schema",'
            b'"json_schema":{"name":"a","schema":' + b'{"items":' * 400 + b"{}" + b"}" * 400 + b"}}}",
            400,
        ),
        (
            b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"tool_choice":"required","tools":[{"type":'
            b'"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":'
            + b'{"items":' * 300
            + b"{}"
            + b"}" * 300
            + b"}}}}]}",
            400,
        ),
        (
            b'{"model":"tiny","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":'
            b'{"name":"f","parameters":' + b'{"items":' * 1000 + b"{}" + b"}" * 1000 + b"}}]}",
            400,
        ),
        (
            b'{"model":"tiny","messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":'
            b'"' + b"[" * 99 + b"]" * 99 + b'"}}]},{"role":"user","content":"a"}],"max_tokens":1}',
            200,
        ),
    ],
)
async def test_the_ends_of_json(tokenizer: Tokenizer, chat_template: ChatTemplate, raw: bytes, status: int) -> None:
    async with node(tokenizer, chat_template) as served:
        call = await Call(served.app, "POST", "/v1/chat/completions", raw).done()
    assert call.status == status, call.body
