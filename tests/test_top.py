"""The terminal shows what the feed says, and says what to look at where there is none."""

from __future__ import annotations

import asyncio
import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
from click.testing import CliRunner
from rich.console import Console

from edgeproxy.cli import main
from edgeproxy.protocol.node.report import NodeReport, NodeState
from edgeproxy.protocol.openai.sse import SseParser
from edgeproxy.top import TopError, newest, render, top
from tests.gateway.drive import ask, begin, chat, edge
from tests.observe.records import record

NODE: dict[str, Any] = {"name": "frankfurt-1", "region": "frankfurt", "ready": True, "breaker": "closed"}
NODE |= {"rtt_s": 0.0023, "queue_s": 0.0, "kv_used": 0.12, "in_flight": 1, "report": None, "instruments": None}
NODE["trouble"] = ""
REPORT = NodeReport(NodeState.READY, "m", "bits", 3, 2, 700, 100, 50, 0, 16, 1000.0, 1.0, 7, 0.0)
STATE: dict[str, Any] = {
    "version": "1",
    "verdict": {"mood": "good", "text": "Users do not wait"},
    "first_token": {"p50": 0.132, "p95": 0.401},
    "lately": {"answered": 10, "within": 9, "failed": 0, "untimed": 0, "refused": 7, "left": 0},
    "budgets": [0.15, 0.15],
    "budget_ms": 150,
    "burn": [{"long": 3.62, "short": 3.62, "state": state} for state in ("ok", "burning", "few")],
    "home": "frankfurt",
    "now": 1_760_000_000.0,
    "nodes": [NODE],
}


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
    Console(file=out, width=140).print(render(state, state["recent"]))
    text = out.getvalue()
    assert "1 of 2 nodes down" in text
    assert "near-1" in text and "no answer" in text
    assert "r-1" in text and "home" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nothing_that_counts_is_cut_in_a_terminal_of_any_width(width: int) -> None:
    other = {**NODE, "name": "frankfurt-2", "ready": False, "trouble": "could not be reached: " + "x" * 100}
    state = {**STATE, "nodes": [NODE, other]}
    request = record(request_id="req_" + "7" * 32, runner_up={"node": "virginia-1", "total_s": 0.2})
    out = io.StringIO()
    Console(file=out, width=width).print(render(state, [request], width))
    lines = out.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    figures, shown = lines[1:-5], lines[-5:]
    words = "  ".join(line.strip() for line in figures)
    assert words.startswith("p50 132.0 ms  p95 401.0 ms  within 150 ms 90.0%  burn 3.6/3.6  3.6/3.6!  (3.6/3.6)")
    assert words.endswith("(too few to tell)  5 min: 10 answered  7 refused")
    assert sum("frankfurt-1" in line for line in shown) == sum("frankfurt-2" in line for line in shown) == 1
    assert "2.3 ms" in shown[1]
    assert request["request_id"] in shown[-1] and shown[-1].rstrip().endswith("100.0 ms")


def test_budgets_that_differ_are_told_as_what_they_are() -> None:
    def told(budgets: list[float]) -> str:
        out = io.StringIO()
        Console(file=out, width=140).print(render({**STATE, "budgets": budgets}, []))
        return out.getvalue()

    assert "within 137-400 ms 90.0%" in told([0.137, 0.4])
    assert "within 137 ms 90.0%" in told([0.137, 0.137]), "also where it is not the default"
    assert "within 150 ms 90.0%" in told([])
    assert "within 0.15-3600 s 90.0%" in told([0.15, 3600.0])


def test_who_is_refused_in_a_loop_leaves_room_for_who_is_served() -> None:
    served = [{"request_id": f"a{number}", "time": 1.0, "kind": "answered"} for number in range(20)]
    refused = [{"request_id": f"r{number}", "time": 2.0, "kind": "refused"} for number in range(500)]
    kept = [request["request_id"] for request in newest([*served, *refused, *served, *refused])]
    assert kept == [*(f"a{number}" for number in range(11, 20)), "r497", "r498", "r499"]


class _Feed(BaseHTTPRequestHandler):
    """One event, and the end."""

    state: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"event: snapshot\nid: 1\ndata: " + orjson.dumps(self.state) + b"\n\n")

    def log_message(self, *_: Any) -> None:
        pass


def test_figures_of_a_feed_that_has_ended_are_told_to_be_old_and_it_is_asked_for_again() -> None:
    _Feed.state = {**STATE, "recent": []}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Feed)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    waited = list[float]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 1:
            server.shutdown()
            server.server_close()
        else:
            raise KeyboardInterrupt

    out = io.StringIO()
    console = Console(file=out, width=140, force_terminal=True, legacy_windows=False)
    with pytest.raises(KeyboardInterrupt):
        top(f"http://127.0.0.1:{server.server_address[1]}", console, wait=wait)
    text = out.getvalue()
    assert text.index("Users do not wait") < text.index("these figures are old")
    assert len(waited) == 2, "also where it does not come back, once there was one"


def test_what_a_node_said_before_it_went_down_is_not_told_as_if_it_were_true(tmp_path: Path) -> None:
    async def told() -> tuple[dict[str, Any], dict[str, Any]]:
        async with edge(tmp_path) as e:
            for node in e.fleet.nodes:
                node.rtt.probe(0.01, 1.0)
                node.report = REPORT
            e.fleet.nodes[1].down("killed")
            near, far = (await ask(e.admin, method="GET", path="/admin/status")).json["nodes"]
            text = (await ask(e.admin, method="GET", path="/metrics")).body.decode()
            assert 'edgeproxy_node_queue_seconds{node="near-1"' in text
            assert 'edgeproxy_node_queue_seconds{node="far-1"' not in text
            return near, far

    near, far = asyncio.run(told())
    assert near["queue_s"] == 0.7
    assert [far[name] for name in ("queue_s", "kv_used", "rtt_s", "report", "instruments")] == [None] * 5
    out = io.StringIO()
    Console(file=out, width=140).print(render({**STATE, "nodes": [near, far]}, []))
    (line,) = [line for line in out.getvalue().splitlines() if "far-1" in line]
    assert " ms" not in line and "killed" in line


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("127.0.0.1:9", "http://127.0.0.1:9"),
        ("localhost:9", "http://localhost:9"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9"),
        ("http://127.0.0.1:9/dashboard", "http://127.0.0.1:9"),
    ],
)
def test_an_admin_address_may_be_given_as_people_write_it(given: str, asked: str) -> None:
    for command in (["top", "--once", "--admin", given], ["explain", "--admin", given, "id"]):
        told = CliRunner().invoke(main, command)
        assert told.exit_code == 1
        assert f"{asked} " in told.output and "is the proxy running" in told.output


def test_a_file_that_cannot_be_used_is_no_dead_end(tmp_path: Path) -> None:
    """What it broke under a running proxy is what one wants to look at then."""
    (file := tmp_path / "mine.yaml").write_text("budgt_ms: 3\n")
    for command in (["top", "--once"], ["explain", "id"]):
        told = CliRunner().invoke(main, [*command, "--config", str(file)])
        assert told.exit_code == 1
        assert "budgt_ms" in told.output and "--admin 127.0.0.1:9080" in told.output


@pytest.mark.parametrize("given", ["ftp://127.0.0.1:9", "http://", "127.0.0.1:port", ":9", ""])
def test_what_is_no_address_is_refused_with_an_example(given: str) -> None:
    told = CliRunner().invoke(main, ["top", "--admin", given])
    assert told.exit_code == 2
    assert "write http://127.0.0.1:9080" in told.output


def test_without_a_proxy_the_error_says_what_to_look_at() -> None:
    with pytest.raises(TopError, match="is the proxy running"):
        top("http://127.0.0.1:9", Console(file=io.StringIO()), once=True)
