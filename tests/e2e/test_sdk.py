"""openai-python works by changing base_url alone."""

from __future__ import annotations

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.deployment import MODEL, Deployment, wait_until

pytestmark = pytest.mark.xdist_group("e2e")
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def client(deployment: Deployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=deployment.base_url, api_key="none", max_retries=0)


def test_an_answer_in_one_piece(deployment: Deployment) -> None:
    with client(deployment) as api:
        answer = api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    choice = answer.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens is not None


def test_a_stream_is_the_same_text_in_pieces(deployment: Deployment) -> None:
    with (
        client(deployment) as api,
        api.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, stream=True, stream_options={"include_usage": True}
        ) as stream,
    ):
        chunks = list(stream)
    *content, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in content) == ANSWER
    assert len(content) > 5
    assert content[0].choices[0].delta.role == "assistant"
    assert content[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage is not None and last.usage.prompt_tokens == 37
    assert len({chunk.id for chunk in chunks}) == 1


async def test_the_async_client_streams(deployment: Deployment) -> None:
    async with openai.AsyncOpenAI(base_url=deployment.base_url, api_key="none", max_retries=0) as api:
        stream = await api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == ANSWER


async def test_the_async_client_takes_an_answer_in_one_piece(deployment: Deployment) -> None:
    async with openai.AsyncOpenAI(base_url=deployment.base_url, api_key="none", max_retries=0) as api:
        answer = await api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.content == ANSWER


def test_a_stream_given_up_half_way_ends_on_the_node(deployment: Deployment) -> None:
    def aborts() -> int:
        return sum(int(deployment.node_status(port)["aborts"]) for port in (deployment.near, deployment.far))

    before = aborts()
    with client(deployment) as api:
        stream = api.chat.completions.create(
            model=MODEL, messages=QUESTION, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
        )
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
    wait_until(lambda: aborts() > before, 30, deployment)


def test_a_seed_makes_an_answer_repeatable(deployment: Deployment) -> None:
    with client(deployment) as api:
        texts = {
            api.chat.completions.create(model=MODEL, messages=QUESTION, seed=seed, temperature=1.5, max_tokens=24)
            .choices[0]
            .message.content
            for seed in (7, 7, 8)
        }
    assert len(texts) == 2


def test_stop_strings_end_the_text_before_them(deployment: Deployment) -> None:
    with client(deployment) as api:
        answer = api.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stop=[" France"])
    assert answer.choices[0].message.content == "The capital of"
    assert answer.choices[0].finish_reason == "stop"


def test_max_tokens_is_kept_and_said(deployment: Deployment) -> None:
    with client(deployment) as api:
        answer = api.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 3


def test_models_are_listed(deployment: Deployment) -> None:
    with client(deployment) as api:
        assert [model.id for model in api.models.list()] == [MODEL]
        assert api.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("change", "error", "code", "param"),
    [
        ({"model": "gpt-none"}, openai.NotFoundError, "model_not_found", "model"),
        ({"n": 0}, openai.BadRequestError, None, "n"),
        ({"modalities": ["audio"]}, openai.BadRequestError, None, "modalities"),
        ({"tool_choice": "required"}, openai.BadRequestError, "invalid_parameter_combination", "tool_choice"),
        ({"temperature": "warm"}, openai.BadRequestError, None, "temperature"),
        ({"messages": []}, openai.BadRequestError, None, "messages"),
        ({"max_tokens": 100_000}, openai.BadRequestError, "context_length_exceeded", None),
    ],
)
def test_what_is_not_honoured_is_refused_by_name(
    deployment: Deployment, change: dict[str, object], error: type[openai.APIStatusError], code: str, param: str
) -> None:
    with client(deployment) as api, pytest.raises(error) as caught:
        api.chat.completions.create(model=MODEL, messages=QUESTION, extra_body=change)
    assert isinstance(caught.value.body, dict)
    assert set(caught.value.body) >= {"message", "type", "param", "code"}
    if code is not None:
        assert caught.value.code == code
    if param is not None:
        assert caught.value.param == param
