"""The dashboard's first page in a terminal: the same feed, the same figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edgeproxy.protocol.openai.sse import SseError, SseParser

SHOWN = 12
TIMEOUT = httpx.Timeout(10.0, read=30.0)
"""Seconds; the feed says something every 15 at least."""
_MOODS = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}
_NONE = "-"

State = Mapping[str, Any]


class TopError(RuntimeError):
    """There is nothing to show; the message names the thing, the cause and the remedy."""


def top(admin: str, console: Console, *, once: bool = False) -> None:
    """Until interrupted, or the feed ends; once where nobody watches a terminal.

    `admin`: base URL of the admin listener. Raises TopError.
    """
    recent: deque[State] = deque(maxlen=SHOWN)
    with Live(console=console, auto_refresh=False) as live:
        for state in _states(admin):
            recent.extend(state["recent"])
            live.update(render(state, recent), refresh=True)
            if once or not console.is_terminal:
                return


def _states(admin: str) -> Iterator[State]:
    parser = SseParser(64 << 20)
    try:
        with httpx.stream("GET", f"{admin}/admin/events", timeout=TIMEOUT) as answer:
            if answer.status_code != 200:
                raise TopError(f"{admin} answers {answer.status_code}; is it the admin listener, of this version?")
            for data in answer.iter_bytes():
                yield from (orjson.loads(event.data) for event in parser.feed(data) if event.data)
    except (httpx.HTTPError, httpx.InvalidURL, SseError) as error:
        raise TopError(f"{admin} tells nothing ({error}); is the proxy running, and its admin listener?") from None


def render(state: State, recent: deque[State]) -> Group:
    """`recent`: the last requests, the newest at the end."""
    told = state["verdict"]
    return Group(
        Text(f"edgeproxy {state['version']}  ", "dim") + Text(told["text"], _MOODS[told["mood"]]),
        _figures(state),
        _nodes(state),
        _requests(recent),
    )


def _figures(state: State) -> Text:
    first, lately = state["first_token"], state["lately"]
    total = lately["answered"] + lately["failed"]
    share = f"{lately['within'] / total:.1%}" if total else _NONE
    burn = ", ".join(f"{_rate(pair['long'])}/{_rate(pair['short'])}" for pair in state["burn"])
    parts = (f"p50 {_ms(first['p50'])}", f"p95 {_ms(first['p95'])}", f"within {state['budget_ms']:g} ms {share}")
    return Text("  ".join((*parts, f"burn {burn}")))


def _nodes(state: State) -> Table:
    table = Table("region", "node", "state", box=None, padding=(0, 2, 0, 0))
    for name in ("rtt", "load", "queue", "KV", "KV reuse", "SUSI"):
        table.add_column(name, justify="right")
    for node in state["nodes"]:
        report, shown = node["report"], node["instruments"] or {}
        good = node["ready"] and node["breaker"] == "closed"
        trouble = node["trouble"] or f"breaker {node['breaker']}"
        table.add_row(
            f"{node['region']}{' (home)' if node['region'] == state['home'] else ''}",
            node["name"],
            Text("ready", "green") if good else Text(trouble, "red"),
            _ms(node["rtt_s"]),
            f"{report['running']} + {report['waiting']}" if report else str(node["in_flight"]),
            _ms(node["queue_s"]),
            _percent(node["kv_used"]),
            _percent(shown.get("kvr")),
            _rate(shown.get("susi")),
        )
    return table


def _requests(recent: deque[State]) -> Table:
    table = Table("request", "region", "reason", "runner-up", "status", box=None, padding=(0, 2, 0, 0))
    table.add_column("first token", justify="right")
    for request in reversed(recent):
        first, other = request["wait_s"], request["runner_up"]
        late = first is not None and first > request["budget_s"]
        table.add_row(
            request["request_id"],
            request["region"] or _NONE,
            request["reason"] or _NONE,
            f"{other['node']} {_ms(other['total_s'])}" if other else _NONE,
            str(request["status"]),
            Text(_ms(first), "red" if late else "green"),
        )
    return table


def _ms(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1e3:.1f} ms"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.0%}"


def _rate(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"
