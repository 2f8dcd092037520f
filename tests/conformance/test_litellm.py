"""LiteLLM's SDK by changing api_base."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.conformance.weather import ANSWER, ASKED, QUESTION, WEATHER, City
from tests.e2e.deployment import MODEL, Deployment

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # read at import, which else asks the network
litellm = pytest.importorskip("litellm", reason="not installed: scripts/conformance installs and runs it")
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]


def ask(deployment: Deployment, content: str, **more: Any) -> Any:
    return litellm.completion(
        model=f"openai/{MODEL}",
        api_base=deployment.base_url,
        api_key="none",
        messages=[{"role": "user", "content": content}],
        temperature=0,
        num_retries=0,
        **{"max_tokens": 80, **more},
    )


def test_text(deployment: Deployment) -> None:
    answer = ask(deployment, QUESTION)
    assert answer.choices[0].message.content == ANSWER
    assert answer.usage.prompt_tokens == 37


def test_a_stream(deployment: Deployment) -> None:
    chunks = list(ask(deployment, QUESTION, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert litellm.stream_chunk_builder(chunks).choices[0].message.content == ANSWER


@pytest.mark.parametrize("stream", [False, True])
def test_a_call(deployment: Deployment, stream: bool) -> None:
    answer = ask(deployment, ASKED, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, stream=stream)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer))
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}


def test_an_object(deployment: Deployment) -> None:
    answer = ask(deployment, "Name a city.", response_format=City)
    City.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"model": "openai/none"}, "NotFoundError"), ({"logit_bias": {"1": 1000}}, "BadRequestError")],
)
def test_errors_are_of_their_class(deployment: Deployment, change: dict[str, Any], error: str) -> None:
    with pytest.raises(getattr(litellm, error)):
        litellm.completion(
            **{
                "model": f"openai/{MODEL}",
                "api_base": deployment.base_url,
                "api_key": "none",
                "messages": [{"role": "user", "content": "a"}],
                "num_retries": 0,
                **change,
            }
        )


async def test_the_async_client(deployment: Deployment) -> None:
    answer = await litellm.acompletion(
        model=f"openai/{MODEL}",
        api_base=deployment.base_url,
        api_key="none",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=80,
    )
    assert answer.choices[0].message.content == ANSWER
