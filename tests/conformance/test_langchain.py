"""langchain-openai by changing base_url, as langchain's own standard tests see it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.deployment import MODEL, Deployment

HOW = "not installed: scripts/conformance installs and runs it"
pytest.importorskip("langchain_openai", reason=HOW)
pytest.importorskip("langchain_tests", reason=HOW)

from langchain_openai import ChatOpenAI  # noqa: E402
from langchain_tests.integration_tests import ChatModelIntegrationTests  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]


class TestChatOpenAI(ChatModelIntegrationTests):
    base_url = ""

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _deployed(cls, deployment: Deployment) -> None:
        cls.base_url = deployment.base_url

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        # Of 135M parameters: without these it talks on, and repeats itself.
        return {
            "model": MODEL,
            "base_url": self.base_url,
            "api_key": "none",
            "temperature": 0,
            "frequency_penalty": 0.7,
            "max_completion_tokens": 200,
            "stream_usage": True,
        }

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return False

    @property
    def model_override_value(self) -> str:
        return MODEL

    @pytest.mark.xfail(reason="the form is told to the model and left to it: 135M parameters do not keep it")
    def test_json_mode(self, model: Any) -> None:
        super().test_json_mode(model)

    @pytest.mark.xfail(reason="the choice is left to the model, and 135M parameters do not call", strict=False)
    def test_agent_loop(self, model: Any) -> None:
        super().test_agent_loop(model)
