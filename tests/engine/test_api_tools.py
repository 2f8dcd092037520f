"""Tools over HTTP: calls that the model writes, calls that it must write, and what is said of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from engine.chat import REPEATS
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, chat_call, says, serving

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Bonn", "Köln"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ARGUMENTS = {"city": "Köln", "days": 3}
ONE = f"<tool_call>\n{json.dumps({'name': 'get_weather', 'arguments': ARGUMENTS}, ensure_ascii=False)}\n</tool_call>"
TWO = f'{ONE}\n<tool_call>\n{{"name": "clock", "arguments": {{}}}}\n</tool_call>'


def executor(tokenizer: Tokenizer, text: str, *, ends: bool = True) -> FakeExecutor:
    return FakeExecutor(script=says(tokenizer, text, ends=ends), built_for=LIMITS)


async def answer(
    tokenizer: Tokenizer, template: ChatTemplate, text: str, *, stream: bool = False, ends: bool = True, **fields: Any
) -> dict[str, Any]:
    """The message and its finish reason, put together from its pieces where it is streamed."""
    fields = {"tools": [WEATHER, CLOCK]} | fields
    async with serving(executor(tokenizer, text, ends=ends), tokenizer, template) as served:
        call = await chat_call(served.app, stream=stream, **fields).done()
        assert call.status == 200, call.body
        if not stream:
            choice = call.json()["choices"][0]
            return {**choice["message"], "finish": choice["finish_reason"]}
        return put_together(call.chunks())


def put_together(chunks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"content": "", "tool_calls": []}
    for chunk in chunks:
        choice = chunk["choices"][0]
        found["content"] += choice["delta"].get("content") or ""
        found["finish"] = choice["finish_reason"]
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(found["tool_calls"])
                found["tool_calls"].append(
                    {"id": call["id"], "function": {"name": call["function"]["name"], "arguments": ""}}
                )
            found["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return found


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == len(ids)
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_that_the_model_writes_are_told_as_calls(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    message = await answer(tokenizer, chat_template, f"I look.\n{TWO}", stream=stream)
    assert calls(message) == [("get_weather", ARGUMENTS), ("clock", {})]
    assert (message["content"], message["finish"]) == ("I look.", "tool_calls")


async def test_an_answer_of_calls_alone_has_no_content(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    assert (await answer(tokenizer, chat_template, ONE))["content"] is None


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": None}])
async def test_where_no_tool_may_be_called_a_call_is_text(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any]
) -> None:
    message = await answer(tokenizer, chat_template, ONE, **fields)
    assert (message["content"], message["finish"]) == (ONE, "stop")
    assert "tool_calls" not in message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "clock"}),
        ({"type": "function", "function": {"name": "clock"}}, {"clock"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "clock"}}]},
            },
            {"clock"},
        ),
    ],
)
async def test_a_call_that_is_required_comes_whatever_the_model_would_say(
    tokenizer: Tokenizer, chat_template: ChatTemplate, choice: Any, names: set[str], stream: bool
) -> None:
    message = await answer(tokenizer, chat_template, "I would rather not.", tool_choice=choice, stream=stream)
    assert {name for name, _ in calls(message)} <= names
    assert message["finish"] == "tool_calls"
    assert not message["content"]


async def test_one_call_is_all_where_calls_may_not_be_parallel(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    for choice in ("auto", "required"):
        message = await answer(tokenizer, chat_template, TWO, parallel_tool_calls=False, tool_choice=choice)
        assert calls(message) == [("get_weather", ARGUMENTS)]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_repeats_its_call_has_ended(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    """Small ones do, where they may say nothing else."""
    text = "\n".join([ONE, TWO, TWO])
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        message = await answer(tokenizer, chat_template, text, tool_choice=choice, stream=stream, ends=False)
        assert (calls(message), message["finish"]) == ([("get_weather", ARGUMENTS)], "tool_calls")
    message = await answer(tokenizer, chat_template, f"{TWO}\n{ONE}", tool_choice="required", stream=stream)
    assert calls(message) == [("get_weather", ARGUMENTS), ("clock", {})]
    message = await answer(tokenizer, chat_template, text, stream=stream)
    assert len(calls(message)) == 5, "what the model says unasked is its own"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_goes_round_in_circles_is_stopped_though_it_need_not_call(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    text = "\n".join(['<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'] * (REPEATS + 2))
    message = await answer(tokenizer, chat_template, text, tools=[CLOCK], stream=stream)
    assert (calls(message), message["finish"]) == ([("clock", {})] * REPEATS, "tool_calls")


async def test_tokens_of_a_repetition_count_alike_however_they_come(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    async with serving(executor(tokenizer, f"{ONE}\n{TWO}"), tokenizer, chat_template) as served:
        told = []
        for stream in (False, True, False):
            options: dict[str, Any] = {"stream_options": {"include_usage": True}} if stream else {}
            call = await chat_call(served.app, stream=stream, tools=[WEATHER], tool_choice="required", **options).done()
            told.append((call.chunks()[-1] if stream else call.json())["usage"]["completion_tokens"])
    assert len(set(told)) == 1


async def test_strict_arguments_follow_their_schema_where_the_model_need_not_call(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    wrong = '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Köln"}}\n</tool_call>'
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
    loose = await answer(tokenizer, chat_template, wrong)
    assert calls(loose) == [("get_weather", {"town": "Köln"})]
    held = await answer(tokenizer, chat_template, wrong, tools=[strict])
    assert set(calls(held)[0][1]) == {"city", "days"}
    free = await answer(tokenizer, chat_template, "No need.", tools=[strict])
    assert free["content"] == "No need."


async def test_a_call_that_is_cut_says_so(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    message = await answer(tokenizer, chat_template, TWO, max_tokens=20)
    assert message["finish"] == "length"


async def test_the_model_is_shown_tools_and_what_came_of_calls(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    messages = [
        {"role": "user", "content": "Weather in Köln?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Köln"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ]
    fake = executor(tokenizer, "It rains.")
    async with serving(fake, tokenizer, chat_template) as served:
        await chat_call(served.app, tools=[WEATHER], messages=messages).done()
    prompt = b"".join(tokenizer.bytes_of(token) for plan in fake.plans for token in plan.rows[0].tokens).decode()
    assert json.dumps(WEATHER, ensure_ascii=False) in prompt
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>' in prompt
    assert "<tool_response>\nRain.\n</tool_response>" in prompt


async def test_a_schema_that_cannot_be_enforced_is_refused_only_where_it_must_be(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    def odd(schema: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "odd", "parameters": schema}}

    deep: dict[str, Any] = {"type": "object"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"type": "object", "not": {}}, "'not'"),
        ({"properties": {"id": {"const": 2**63}}}, "#/properties/id/const"),
        (deep, "too deeply"),
    ]
    async with serving(executor(tokenizer, "Hi."), tokenizer, chat_template) as served:
        for schema, says in refused:
            tools = [CLOCK, odd(schema)]
            call = await chat_call(served.app, tools=tools, tool_choice="required").done()
            error = call.json()["error"]
            assert (call.status, error["code"]) == (400, "unsupported_schema")
            assert error["param"] == "tools[1].function.parameters"
            assert says in error["message"]
        assert (await chat_call(served.app, tools=[odd(refused[0][0])]).done()).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_wherever_a_call_that_must_come_is_cut_no_part_of_it_is_content(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    named = {"type": "function", "function": {"name": "get_weather"}}
    most = len(tokenizer.encode(ONE)) + 1
    async with serving(executor(tokenizer, ONE, ends=False), tokenizer, chat_template) as served:
        for choice, tokens in [("required", tokens) for tokens in range(1, most)] + [(named, 2), (named, 7)]:
            call = chat_call(served.app, stream=stream, tools=[WEATHER], tool_choice=choice, max_tokens=tokens)
            await call.done()
            assert call.status == 200, call.body
            message = put_together(call.chunks()) if stream else call.json()["choices"][0]["message"]
            assert not message["content"]


STOPS = ["}", "{", '"', "\n", "get_weather", "<tool_call>", "</tool_call>", "name", " "]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_stop_cuts_a_call_that_must_come(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    ids = tokenizer.encode(ONE)[1:9]
    for stops in [{"stop": [stop]} for stop in STOPS] + [{"stop_token_ids": list(ids)}]:
        message = await answer(tokenizer, chat_template, TWO, tool_choice="required", stream=stream, more=stops)
        assert calls(message) == [("get_weather", ARGUMENTS), ("clock", {})], stops
        assert (message["content"] or "", message["finish"]) == ("", "tool_calls")


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_are_looked_for_around_calls_that_the_model_writes_and_not_in_them(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    for stop in [*STOPS, "look.<", "}\n</tool"]:
        message = await answer(tokenizer, chat_template, TWO, stream=stream, stop=[stop])
        assert calls(message) == [("get_weather", ARGUMENTS), ("clock", {})], stop
        assert (message["content"] or "", message["finish"]) == ("", "tool_calls")
    before = await answer(tokenizer, chat_template, f"I look.\n{ONE}", stream=stream, stop=["look"])
    assert (before["content"], before["finish"], before.get("tool_calls") or []) == ("I ", "stop", [])
    behind = await answer(tokenizer, chat_template, f"{ONE}\nSo it is. {ONE}", stream=stream, stop=["is"])
    assert (behind["content"], behind["finish"], calls(behind)) == (
        "So it ",
        "tool_calls",
        [("get_weather", ARGUMENTS)],
    )


async def test_a_call_that_the_model_leaves_unfinished_is_not_told_as_one_to_run(
    tokenizer: Tokenizer, chat_template: ChatTemplate
) -> None:
    message = await answer(tokenizer, chat_template, ONE.partition(', "days')[0])
    assert (message["finish"], len(message["tool_calls"])) == ("stop", 1)
