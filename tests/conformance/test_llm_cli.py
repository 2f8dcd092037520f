"""The `llm` command with one entry in its extra-openai-models.yaml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.weather import ANSWER, QUESTION
from tests.e2e.deployment import MODEL, Deployment

pytest.importorskip("llm", reason="not installed: scripts/conformance installs and runs it")
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]


def run(deployment: Deployment, folder: Path, *arguments: str) -> str:
    (folder / "extra-openai-models.yaml").write_text(
        f"- model_id: edge\n  model_name: {MODEL}\n  api_base: {deployment.base_url}\n  supports_schema: true\n"
    )
    command = [sys.executable, "-m", "llm", *arguments]
    environment = {**os.environ, "LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": ""}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("more", [[], ["--no-stream"]])
def test_a_prompt(deployment: Deployment, tmp_path: Path, more: list[str]) -> None:
    assert run(deployment, tmp_path, "-m", "edge", "-o", "temperature", "0", *more, QUESTION) == ANSWER


def test_a_conversation_goes_on(deployment: Deployment, tmp_path: Path) -> None:
    assert run(deployment, tmp_path, "-m", "edge", "-o", "temperature", "0", QUESTION) == ANSWER
    assert run(deployment, tmp_path, "-c", "-o", "temperature", "0", "-o", "max_tokens", "20", "And of Italy?")


def test_a_schema(deployment: Deployment, tmp_path: Path) -> None:
    schema = '{"type":"object","properties":{"city":{"enum":["Paris","Rome"]}},"required":["city"]}'
    told = run(deployment, tmp_path, "-m", "edge", "--schema", schema, "-o", "temperature", "0", "Name a city.")
    assert json.loads(told)["city"] in ("Paris", "Rome")
