"""What openai-python does with what the proxy tells it: retries, errors by class, headers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import fake_behaviours
from tests.fake_exchange import JSON, Exchange, error_body
from tests.gateway.drive import Edge
from tests.gateway.test_sockets import ASKED, TEXT, listening


@asynccontextmanager
async def sdk(folder: Path, retries: int = 2) -> AsyncIterator[tuple[Edge, openai.AsyncOpenAI]]:
    async with (
        listening(folder) as (e, port),
        openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="unused",
            max_retries=retries,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        ) as client,
    ):
        yield e, client


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_node_that_asks_to_come_back_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, stream: bool
) -> None:
    """Once the proxy has asked everybody else, `retry-after-ms` reaches the SDK, which waits so long and asks again."""

    async def busy_once(x: Exchange) -> None:
        if x.node.seen["ok"] > 1:
            await fake_behaviours.BEHAVIOURS["well"](x)
            return
        body = error_body("busy", "rate_limit_error", "rate_limit_exceeded")
        await x.whole(status, body, [*JSON, (b"retry-after", b"0"), (b"retry-after-ms", b"5")])

    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "well", fake_behaviours.ok)
    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", busy_once)
    async with sdk(tmp_path) as (e, client):
        if stream:
            chunks = await client.chat.completions.create(model="ok", messages=ASKED, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        else:
            text = (await client.chat.completions.create(model="ok", messages=ASKED)).choices[0].message.content or ""
        assert text == TEXT
        assert [record["status"] for record in e.lines.requests] == [status, 200]


@pytest.mark.parametrize(
    ("change", "error", "status"),
    [
        ({"model": "400"}, openai.BadRequestError, 400),
        ({"model": "none"}, openai.NotFoundError, 404),
        ({"model": "429"}, openai.RateLimitError, 429),
        ({"model": "500"}, openai.InternalServerError, 502),
        ({"model": "503-text"}, openai.InternalServerError, 503),
        ({"extra_headers": {"content-type": "text/plain"}}, openai.APIStatusError, 415),
        ({"extra_headers": {"x-latency-budget-ms": "soon"}}, openai.BadRequestError, 400),
    ],
)
async def test_errors_have_their_class_and_all_that_is_told_of_them(
    tmp_path: Path, change: dict[str, Any], error: type[openai.APIStatusError], status: int
) -> None:
    async with sdk(tmp_path, retries=0) as (_, client):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(**{"model": "ok", "messages": ASKED, **change})
        assert caught.value.status_code == status
        assert caught.value.request_id
        assert isinstance(caught.value.body, dict) and set(caught.value.body) >= {"message", "type", "param", "code"}


async def test_headers_of_an_answer_can_be_read(tmp_path: Path) -> None:
    async with sdk(tmp_path) as (_, client):
        raw = await client.chat.completions.with_raw_response.create(model="ok", messages=ASKED)
        assert raw.headers["x-edge-region"] == "near"
        assert "total;dur=" in raw.headers["server-timing"]
        assert raw.parse().choices[0].message.content == TEXT
        async with client.chat.completions.with_streaming_response.create(
            model="ok", messages=ASKED, stream=True
        ) as streamed:
            assert streamed.headers["content-type"].startswith("text/event-stream")
            assert streamed.request_id
            assert [line async for line in streamed.iter_lines()][-2] == "data: [DONE]"
