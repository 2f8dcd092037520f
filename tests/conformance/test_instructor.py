"""instructor by changing base_url, in each of its ways to ask for an object."""

from __future__ import annotations

from collections.abc import Iterable

import openai
import pytest

from tests.conformance.weather import City
from tests.e2e.deployment import MODEL, Deployment

instructor = pytest.importorskip("instructor", reason="not installed: scripts/conformance installs and runs it")
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]


LEFT = pytest.mark.xfail(reason="told to the model and left to it: 135M parameters do not keep to it")


@pytest.mark.parametrize(
    "mode",
    [
        "TOOLS",
        "TOOLS_STRICT",
        "JSON_SCHEMA",
        pytest.param("JSON", marks=LEFT),
        pytest.param("PARALLEL_TOOLS", marks=LEFT),
    ],
)
def test_an_object(deployment: Deployment, mode: str) -> None:
    api = openai.OpenAI(base_url=deployment.base_url, api_key="none", max_retries=0)
    client = instructor.from_openai(api, mode=instructor.Mode[mode])
    several = mode == "PARALLEL_TOOLS"
    wanted = Iterable[City] if several else City
    found = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a city, with the fields 'name' (Paris or Rome) and 'capital'."}],
        response_model=wanted,
        temperature=0,
        max_tokens=120,
        max_retries=0,
    )
    assert all(isinstance(one, City) for one in (found if several else [found]))


def test_an_object_as_it_grows(deployment: Deployment) -> None:
    api = openai.OpenAI(base_url=deployment.base_url, api_key="none", max_retries=0)
    client = instructor.from_openai(api, mode=instructor.Mode.TOOLS)
    parts = list(
        client.chat.completions.create_partial(
            model=MODEL,
            messages=[{"role": "user", "content": "Name a city."}],
            response_model=City,
            temperature=0,
            max_tokens=80,
        )
    )
    assert len(parts) > 1
    assert parts[-1].name in ("Paris", "Rome")
