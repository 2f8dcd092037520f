"""The terminal shows what the feed says, and says what to look at where there is none."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from edgeproxy.protocol.openai.sse import SseParser
from edgeproxy.top import TopError, render, top
from tests.gateway.drive import ask, begin, chat, edge


async def test_verdict_nodes_and_decisions_are_shown(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        await ask(e.app, chat("ok", stream=True), headers={"x-request-id": "r-1"})
        e.fleet.nodes[1].down("no answer")
        feed = begin(e.admin, method="GET", path="/admin/events")
        await feed.until(lambda seen: seen.body.count(b"\n\n") >= 2)
        feed.leave()
        await feed.done()
    (event,) = [event for event in SseParser().feed(feed.body) if event.data]
    state = orjson.loads(event.data)
    out = io.StringIO()
    Console(file=out, width=140).print(render(state, deque(state["recent"])))
    text = out.getvalue()
    assert "1 of 2 nodes down" in text
    assert "near-1" in text and "no answer" in text
    assert "r-1" in text and "home" in text


def test_without_a_proxy_the_error_says_what_to_look_at() -> None:
    with pytest.raises(TopError, match="is the proxy running"):
        top("http://127.0.0.1:9", Console(file=io.StringIO()), once=True)
