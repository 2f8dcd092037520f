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
WIDE = 100
"""Columns of a terminal that has room for everything."""
_ID_WIDTH = 36
"""Of the ids that the proxy gives: whole, for `edgeproxy explain`."""
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
            live.update(render(state, recent, console.width), refresh=True)
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


def render(state: State, recent: deque[State], width: int = WIDE) -> Group:
    """`recent`: the last requests, the newest at the end. `width`: of the terminal, in columns."""
    told = state["verdict"]
    return Group(
        Text(f"edgeproxy {state['version']}  ", "dim") + Text(told["text"], _MOODS[told["mood"]]),
        _figures(state),
        _nodes(state, wide=width >= WIDE),
        _requests(recent, wide=width >= WIDE),
    )


def _figures(state: State) -> Text:
    first, lately = state["first_token"], state["lately"]
    total = lately["answered"] + lately["failed"]
    share = f"{lately['within'] / total:.1%}" if total else _NONE
    burn = " ".join(f"{_rate(pair['long'], 1)}/{_rate(pair['short'], 1)}" for pair in state["burn"])
    parts = (f"p50 {_ms(first['p50'])}", f"p95 {_ms(first['p95'])}", f"within {state['budget_ms']:g} ms {share}")
    return Text("  ".join((*parts, f"burn {burn}")))


def _nodes(state: State, *, wide: bool) -> Table:
    """A line a node, however long a trouble is: what has no room is cut, and in a narrow terminal left out."""
    table = _table()
    table.add_column("region", no_wrap=True, min_width=8)
    table.add_column("node", no_wrap=True, min_width=12)
    table.add_column("state", no_wrap=True, overflow="ellipsis", max_width=40 if wide else 20)
    for name in ("rtt", "load", "queue", "KV", *(("KV reuse", "SUSI") if wide else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for node in state["nodes"]:
        report, shown = node["report"], node["instruments"] or {}
        good = node["ready"] and node["breaker"] == "closed"
        trouble = node["trouble"] or f"breaker {node['breaker']}"
        home = node["region"] == state["home"]
        table.add_row(
            f"{node['region']}{' (home)' if home and wide else '*' if home else ''}",
            node["name"],
            Text("ready", "green") if good else Text(trouble, "red"),
            _ms(node["rtt_s"]),
            f"{report['running']} + {report['waiting']}" if report else str(node["in_flight"]),
            _ms(node["queue_s"]),
            _percent(node["kv_used"]),
            *((_percent(shown.get("kvr")), _rate(shown.get("susi"))) if wide else ()),
        )
    return table


def _requests(recent: deque[State], *, wide: bool) -> Table:
    table = _table()
    table.add_column("request", no_wrap=True, overflow="ellipsis", min_width=_ID_WIDTH)
    for name in ("region", "reason", *(("runner-up",) if wide else ()), "status"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_column("first token", justify="right", no_wrap=True)
    for request in reversed(recent):
        first, other = request["wait_s"], request["runner_up"]
        late = first is not None and first > request["budget_s"]
        runner_up = f"{other['node']} {_ms(other['total_s'])}" if other else _NONE
        table.add_row(
            request["request_id"],
            request["region"] or _NONE,
            request["reason"] or _NONE,
            *((runner_up,) if wide else ()),
            str(request["status"]),
            Text(_ms(first), "red" if late else "green"),
        )
    return table


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)


def _ms(seconds: float | None) -> str:
    return _NONE if seconds is None else f"{seconds * 1e3:.1f} ms"


def _percent(share: float | None) -> str:
    return _NONE if share is None else f"{share:.0%}"


def _rate(value: float | None, digits: int = 2) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"
