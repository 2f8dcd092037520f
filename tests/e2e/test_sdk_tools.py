"""openai-python's tools, structured answers and older completions, through the proxy, with the real model of 135M."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.e2e.deployment import MODEL, Deployment

pytestmark = pytest.mark.xdist_group("e2e")
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris today?"}]
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 40},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class City(BaseModel):
    name: Literal["Paris", "Rome"]
    capital: bool


def client(deployment: Deployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=deployment.base_url, api_key="none", max_retries=0)


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_call_that_is_required_is_always_valid(deployment: Deployment, temperature: float) -> None:
    with client(deployment) as api:
        for seed in range(3):
            answer = api.chat.completions.create(
                model=MODEL,
                messages=QUESTION,
                tools=[WEATHER],
                tool_choice="required",
                parallel_tool_calls=False,
                temperature=temperature,
                seed=seed,
                max_tokens=200,
            )
            message = answer.choices[0].message
            assert answer.choices[0].finish_reason == "tool_calls"
            assert message.tool_calls is not None
            (call,) = message.tool_calls
            assert call.type == "function"
            assert call.function.name == "get_weather"
            arguments = json.loads(call.function.arguments)
            assert set(arguments) == {"city", "unit"}
            assert arguments["unit"] in ("celsius", "fahrenheit")


def test_streamed_calls_are_put_together_by_the_sdk(deployment: Deployment) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    with (
        client(deployment) as api,
        api.chat.completions.stream(
            model=MODEL, messages=QUESTION, tools=[WEATHER], tool_choice=named, temperature=0, max_tokens=200
        ) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert set(json.loads(calls[0].function.arguments)) == {"city", "unit"}


def test_parse_gives_the_object_that_was_asked_for(deployment: Deployment) -> None:
    with client(deployment) as api:
        answer = api.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": "Name a city."}],
            response_format=City,
            temperature=0,
            max_tokens=60,
        )
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, City)


def test_a_streamed_object_is_parsed_as_it_grows(deployment: Deployment) -> None:
    with (
        client(deployment) as api,
        api.beta.chat.completions.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "Name a city."}],
            response_format=City,
            temperature=0,
            max_tokens=60,
        ) as stream,
    ):
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)


def test_calls_and_their_results_go_back(deployment: Deployment) -> None:
    messages: list[ChatCompletionMessageParam] = [
        *QUESTION,
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "18 degrees and sunny"},
    ]
    with client(deployment) as api:
        answer = api.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER], temperature=0, max_tokens=40
        )
    assert answer.choices[0].message.content


def test_older_completions_and_several_answers(deployment: Deployment) -> None:
    with client(deployment) as api:
        one = api.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0)
        told = api.completions.create(
            model=MODEL, prompt="The capital of France is", max_tokens=0, temperature=0, logprobs=1, echo=True
        )
        several = api.chat.completions.create(model=MODEL, messages=QUESTION, n=3, max_tokens=8, seed=1)
        again = api.chat.completions.create(model=MODEL, messages=QUESTION, n=3, max_tokens=8, seed=1)
    assert "Paris" in one.choices[0].text
    assert told.choices[0].text == "The capital of France is"
    logprobs = told.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) > 1
    assert texts == [choice.message.content for choice in again.choices]


def test_log_probabilities_of_a_prompt_are_those_of_its_answer(deployment: Deployment) -> None:
    with client(deployment) as api:
        said = api.completions.create(model=MODEL, prompt="Once upon", max_tokens=8, temperature=0, logprobs=0)
        text = said.choices[0].text
        told = api.completions.create(model=MODEL, prompt="Once upon" + text, max_tokens=0, logprobs=0, echo=True)
    first, second = said.choices[0].logprobs, told.choices[0].logprobs
    assert first is not None and second is not None and first.token_logprobs and second.token_logprobs
    assert second.token_logprobs[-len(first.token_logprobs) :] == first.token_logprobs


def test_tokens_through_the_proxy(deployment: Deployment) -> None:
    with client(deployment) as api:
        raw = api.with_options(base_url=deployment.base_url.removesuffix("/v1"))
        told = raw.post("/tokenize", cast_to=object, body={"model": MODEL, "prompt": "Grüße 💡"})
        assert isinstance(told, dict)
        back = raw.post("/detokenize", cast_to=object, body={"model": MODEL, "tokens": told["tokens"]})
        assert back == {"prompt": "Grüße 💡"}
        assert api.models.retrieve(MODEL).id == MODEL


def test_what_cannot_be_done_is_an_error_of_its_class(deployment: Deployment) -> None:
    schema: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}
    with client(deployment) as api:
        with pytest.raises(openai.BadRequestError) as caught:
            api.chat.completions.create(model=MODEL, messages=QUESTION, response_format=schema)
        assert caught.value.param == "response_format.json_schema.schema"
        with pytest.raises(openai.BadRequestError, match="suffix"):
            api.completions.create(model=MODEL, prompt="a", suffix="b")
