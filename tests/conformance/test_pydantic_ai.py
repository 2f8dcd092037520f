"""pydantic-ai by changing base_url: text, streams, tools and typed output."""

from __future__ import annotations

import pytest

from tests.conformance.weather import ANSWER, ASKED, QUESTION, City
from tests.e2e.deployment import MODEL, Deployment

pytest.importorskip("pydantic_ai", reason="not installed: scripts/conformance installs and runs it")

from pydantic_ai import Agent, ModelSettings, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]
SETTINGS = ModelSettings(temperature=0, max_tokens=80)


@pytest.fixture
def model(deployment: Deployment) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=deployment.base_url, api_key="none"))


async def test_text(model: OpenAIChatModel) -> None:
    result = await Agent(model, model_settings=SETTINGS).run(QUESTION)
    assert result.output == ANSWER
    assert result.usage.output_tokens > 0 and result.usage.input_tokens > 0


async def test_a_stream(model: OpenAIChatModel) -> None:
    async with Agent(model, model_settings=SETTINGS).run_stream(QUESTION) as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == ANSWER


@pytest.mark.parametrize("kind", [NativeOutput, ToolOutput])
async def test_typed_output(model: OpenAIChatModel, kind: type[NativeOutput] | type[ToolOutput]) -> None:
    """As a response format and as a call that is required."""
    result = await Agent(model, model_settings=SETTINGS, output_type=kind(City)).run("Name a city.")
    assert isinstance(result.output, City)


async def test_a_tool_is_called_and_its_result_is_read(model: OpenAIChatModel) -> None:
    asked: list[str] = []
    agent = Agent(model, model_settings=SETTINGS, output_type=ToolOutput(City))

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Current weather of a city."""
        asked.append(city)
        return "18 degrees and sunny"

    result = await agent.run(ASKED)
    assert isinstance(result.output, City)
    parts = [part.part_kind for message in result.all_messages() for part in message.parts]
    assert "tool-call" in parts
