"""Answers of a form: whatever the model would say, what comes has it; what cannot be followed is refused at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, chat_call, says, serving

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"],
    "additionalProperties": False,
}


def of(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}}


def executor(tokenizer: Tokenizer, text: str) -> FakeExecutor:
    return FakeExecutor(script=says(tokenizer, text), built_for=LIMITS)


async def answer(
    tokenizer: Tokenizer, template: ChatTemplate, text: str, *, stream: bool = False, **fields: Any
) -> tuple[str, str]:
    async with serving(executor(tokenizer, text), tokenizer, template) as served:
        call = await chat_call(served.app, stream=stream, **fields).done()
        assert call.status == 200, call.body
        if not stream:
            choice = call.json()["choices"][0]
            return choice["message"]["content"], choice["finish_reason"]
        choices = [chunk["choices"][0] for chunk in call.chunks()]
        return "".join(choice["delta"].get("content", "") for choice in choices), choices[-1]["finish_reason"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_has_the_form_of_its_schema(
    tokenizer: Tokenizer, chat_template: ChatTemplate, stream: bool
) -> None:
    text, finish = await answer(tokenizer, chat_template, "Why, of course!", stream=stream, **of(SCHEMA))
    value = json.loads(text)
    assert set(value) == {"name", "age", "ok"}
    assert (type(value["name"]), type(value["age"]), type(value["ok"])) == (str, int, bool)
    assert finish == "stop"


async def test_a_model_that_keeps_to_the_form_is_not_touched(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    said = '{"name": "Zoë", "age": 41, "ok": true}'
    assert await answer(tokenizer, chat_template, said, **of(SCHEMA)) == (said, "stop")
    whatever = '{"any": [1, "Käse 🧀", null]}'
    found = await answer(tokenizer, chat_template, whatever, response_format={"type": "json_object"})
    assert found == (whatever, "stop")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-c]{3}-\\d"}}, "[a-c]{3}-[0-9]"),
        ({"guided_regex": "[a-c]{3}-\\d"}, "[a-c]{3}-[0-9]"),
        ({"structured_outputs": {"choice": ["yes", 'no "way"']}}, 'yes|no "way"'),
        ({"guided_choice": ["👍", "👎"]}, "👍|👎"),
        ({"structured_outputs": {"grammar": 'start: "a" ("b" | "c") D\nD: /[0-9]/'}}, "a[bc][0-9]"),
        ({"structured_outputs": {"json": {"enum": [5]}}}, "5"),
        ({"guided_json": '{"const": "x"}'}, '"x"'),
    ],
)
async def test_other_forms(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any], pattern: str
) -> None:
    text, finish = await answer(tokenizer, chat_template, "Why, of course!", **fields)
    assert re.fullmatch(pattern, text)
    assert finish == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        (of({"type": "foo"}), "response_format.json_schema.schema", "foo"),
        (of({"not": {}}), "response_format.json_schema.schema", "not"),
        (of({"$ref": "#/nowhere"}), "response_format.json_schema.schema", "nowhere"),
        (of({"type": "string", "pattern": "(?=a)"}), "response_format.json_schema.schema", "look"),
        ({"guided_regex": "(a"}, "guided_regex", "regex"),
        ({"guided_grammar": "start: nowhere"}, "guided_grammar", "nowhere"),
        ({"guided_grammar": "no grammar"}, "guided_grammar", "cannot be followed"),
    ],
)
async def test_what_cannot_be_followed_is_refused_with_the_reason(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any], param: str, says: str
) -> None:
    fake = executor(tokenizer, "Hi.")
    async with serving(fake, tokenizer, chat_template) as served:
        call = await chat_call(served.app, **fields).done()
    error = call.json()["error"]
    assert (call.status, error["param"], error["code"]) == (400, param, "unsupported_schema")
    assert says in error["message"]
    assert not fake.plans


RUNAWAY = {"type": "array", "items": {"const": 1}, "minItems": 1_000_000}
BOUND = {"properties": {"a": RUNAWAY}, "required": ["a"]}
NESTED = "((a{100}){100}){100}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (of(RUNAWAY), "response_format.json_schema.schema"),
        ({"guided_regex": NESTED}, "guided_regex"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": BOUND}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ],
)
async def test_a_form_that_turns_out_to_be_too_much_work_is_the_clients_to_change(
    tokenizer: Tokenizer, chat_template: ChatTemplate, fields: dict[str, Any], param: str
) -> None:
    async with serving(executor(tokenizer, "Hi."), tokenizer, chat_template) as served:
        error = (await chat_call(served.app, **fields, max_tokens=300).done()).json()["error"]
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            param,
            "unsupported_schema",
        )
        told = await chat_call(served.app, **fields, max_tokens=300, stream=True).done()
        assert b"unsupported_schema" in told.body
        assert (await chat_call(served.app).done()).status == 200


async def test_calls_or_a_value_of_the_schema(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    fields = of({"const": {"a": 1}})
    async with serving(executor(tokenizer, call), tokenizer, chat_template) as served:
        message = (await chat_call(served.app, tools=tools, **fields).done()).json()["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["name"] == "f"
        mixed = await chat_call(served.app, tools=tools, guided_regex="a").done()
        assert (mixed.status, mixed.json()["error"]["param"]) == (400, "guided_regex")
    assert await answer(tokenizer, chat_template, '{"a": 1}', tools=tools, **fields) == ('{"a": 1}', "stop")


async def test_forms_beside_free_answers(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer, "Free."), tokenizer, chat_template) as served:
        calls = [chat_call(served.app, **(of(SCHEMA) if n % 2 else {})) for n in range(6)]
        texts = [(await call.done()).json()["choices"][0]["message"]["content"] for call in calls]
    assert texts[::2] == ["Free."] * 3
    assert all(set(json.loads(text)) == {"name", "age", "ok"} for text in texts[1::2])


async def test_several_answers_have_each_its_own_rules(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer, "Free."), tokenizer, chat_template) as served:
        choices = (await chat_call(served.app, n=3, **of(SCHEMA)).done()).json()["choices"]
    assert [set(json.loads(choice["message"]["content"])) for choice in choices] == [{"name", "age", "ok"}] * 3


def test_a_node_starts_without_what_structure_takes() -> None:
    seen = "import sys, engine.server, engine.chat, engine.startup; print('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True).stdout.strip() == "False"
