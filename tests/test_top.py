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
from tests.observe.records import record


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


@pytest.mark.parametrize("width", [80, 120])
def test_a_node_has_one_line_and_ids_are_whole_in_a_terminal_of_any_width(width: int) -> None:
    node = {"name": "frankfurt-1", "region": "frankfurt", "ready": True, "breaker": "closed", "trouble": ""}
    node |= {"rtt_s": 0.0023, "queue_s": 0.0, "kv_used": 0.12, "in_flight": 1, "report": None, "instruments": None}
    other = {**node, "name": "frankfurt-2", "ready": False, "trouble": "could not be reached: " + "x" * 100}
    state = {
        "version": "1",
        "verdict": {"mood": "good", "text": "Users do not wait"},
        "first_token": {"p50": 0.132, "p95": 0.401},
        "lately": {"answered": 10, "within": 9, "failed": 0},
        "budget_ms": 150,
        "burn": [{"long": 3.62, "short": 3.62}] * 3,
        "home": "frankfurt",
        "nodes": [node, other],
    }
    request = record(request_id="req_" + "7" * 32, runner_up={"node": "virginia-1", "total_s": 0.2})
    out = io.StringIO()
    Console(file=out, width=width).print(render(state, deque([request]), width))
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 + 3 + 2
    assert sum("frankfurt-1" in line for line in lines) == sum("frankfurt-2" in line for line in lines) == 1
    assert request["request_id"] in lines[-1] and lines[-1].rstrip().endswith("100.0 ms")


def test_without_a_proxy_the_error_says_what_to_look_at() -> None:
    with pytest.raises(TopError, match="is the proxy running"):
        top("http://127.0.0.1:9", Console(file=io.StringIO()), once=True)
