from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.explain import ExplainError, explained, render
from tests.gateway.drive import ask, chat, edge


async def test_a_decision_is_told_with_its_terms_its_failures_and_its_outcome(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["500"] = "ok"
        await ask(e.app, chat("500"), headers={"x-request-id": "r-1"})
        found = (await ask(e.admin, method="GET", path="/admin/decisions/r-1")).json
    text = render(found)
    assert "home: the home region's best node" in text
    assert "chosen: near-1" in text and "runner-up: far-1" in text
    assert "failed: near-1: status_5xx" in text
    assert "answered by far-1 in far, attempt 2, status 200" in text
    assert "first token expected after" in text


def test_without_a_proxy_the_error_says_what_to_look_at() -> None:
    with pytest.raises(ExplainError, match="is the proxy running"):
        explained("http://127.0.0.1:9", "r-1")
