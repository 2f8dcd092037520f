from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from edgeproxy.cli import main
from edgeproxy.explain import ExplainError, explained, render
from tests.gateway.drive import Edge, ask, begin, chat, edge


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


async def test_without_an_id_the_last_request_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with edge(tmp_path) as e:
        with pytest.raises(ExplainError, match="no request has come"):
            await told_by(e, None, monkeypatch)
        for name in ("r-1", "r-2"):
            await ask(e.app, chat("ok"), headers={"x-request-id": name})
        assert (await told_by(e, None, monkeypatch)).startswith("r-2: ")
        assert (await told_by(e, "r-1", monkeypatch)).startswith("r-1: ")


async def told_by(e: Edge, request_id: str | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command says, of what the operator's application answers."""
    paths = list[str]()

    def get(url: str, **_: object) -> httpx.Response:
        paths.append(url.removeprefix("http://127.0.0.1:9"))
        return answers.pop()

    answers = [httpx.Response(500, json={})]
    monkeypatch.setattr(httpx, "get", get)
    with pytest.raises(ExplainError, match="answers 500"):
        explained("http://127.0.0.1:9", request_id)
    path, _, query = paths[0].partition("?")
    found = await ask(e.admin, method="GET", path=path, query=query.encode())
    answers.append(httpx.Response(found.status, content=found.body))
    return explained("http://127.0.0.1:9", request_id)


def test_without_a_proxy_the_error_says_what_to_look_at() -> None:
    with pytest.raises(ExplainError, match=r"is the proxy running.*--config.*--admin"):
        explained("http://127.0.0.1:9", "r-1")


def test_the_id_may_be_left_out() -> None:
    told = CliRunner().invoke(main, ["explain", "--admin", "127.0.0.1:9"])
    assert told.exit_code == 1
    assert "is the proxy running" in told.output
