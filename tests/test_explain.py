from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.explain import ExplainError, explained, render
from tests.gateway.drive import ask, begin, chat, edge


async def test_a_decision_is_told_with_its_terms_its_failures_and_its_outcome(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        e.far.overrides["500"] = "ok"
        await ask(e.app, chat("500"), headers={"x-request-id": "r-1"})
        found = (await ask(e.admin, method="GET", path="/admin/decisions/r-1")).json
    text = render(found)
    assert "home: the home region's best node" in text
    assert "chosen: near-1" in text and "runner-up: far-1" in text
    assert "failed: near-1: status_5xx" in text
    assert "answered by far-1 in far after that, attempt 2, status 200" in text
    assert "came: far-1" in text and "first token after" in text


async def test_what_nobody_answered_is_not_said_to_be_answered(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("500"), headers={"x-request-id": "r-1"})
        found = (await ask(e.admin, method="GET", path="/admin/decisions/r-1")).json
    text = render(found)
    assert "failed: near-1" in text and "failed: far-1" in text
    assert "no node answered well; the client was told status 502, upstream_failed" in text
    assert "answered by" not in text and "came:" not in text


async def test_a_client_that_left_unanswered_is_not_said_to_be_answered(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("slow"), headers={"x-request-id": "r-1"})
        await e.near.until(lambda: len(e.near.seen) == 1)
        exchange.leave()
        await exchange.done()
        found = (await ask(e.admin, method="GET", path="/admin/decisions/r-1")).json
    text = render(found)
    assert "the client left before anything was answered; it waited for near-1" in text
    assert "answered by" not in text


def test_without_a_proxy_the_error_says_what_to_look_at() -> None:
    with pytest.raises(ExplainError, match=r"is the proxy running.*--config.*--admin"):
        explained("http://127.0.0.1:9", "r-1")
