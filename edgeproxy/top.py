"""The dashboard's first page in a terminal: the same feed, the same figures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import localtime, sleep, strftime
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
TIMEOUT = httpx.Timeout(10.0, read=5.0)
"""Seconds; the feed says something every second. As on the dashboard, what is older than these five is stale."""
AGAIN_S = 1.0
_MOODS = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}
_NONE = "-"

State = Mapping[str, Any]


class TopError(RuntimeError):
    """There is nothing to show; the message names the thing, the cause and the remedy."""


def top(admin: str, console: Console, *, once: bool = False, wait: Callable[[float], None] = sleep) -> None:
    """Until interrupted; once where nobody watches a terminal. A feed that ends or falls silent is asked for again.

    `admin`: base URL of the admin listener. `wait`: between two tries. Raises TopError where there never was a feed.
    """
    recent: deque[State] = deque(maxlen=SHOWN)
    shown: State | None = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                for shown in _states(admin):
                    recent.extend(shown["recent"])
                    live.update(render(shown, recent, console.width), refresh=True)
                    if once or not console.is_terminal:
                        return
            except TopError:
                if shown is None:
                    raise
            if shown is not None:
                live.update(render(shown, recent, console.width, stale=True), refresh=True)
            wait(AGAIN_S)


def _states(admin: str) -> Iterator[State]:
    """Until the feed ends. Raises TopError."""
    parser = SseParser(64 << 20)
    try:
        with httpx.stream("GET", f"{admin}/admin/events", timeout=TIMEOUT) as answer:
            if answer.status_code != 200:
                raise TopError(f"{admin} answers {answer.status_code}; is it the admin listener, of this version?")
            for data in answer.iter_bytes():
                yield from (orjson.loads(event.data) for event in parser.feed(data) if event.data)
    except (httpx.HTTPError, httpx.InvalidURL, SseError) as error:
        raise TopError(f"{admin} tells nothing ({error}); is the proxy running, and its admin listener?") from None


def render(state: State, recent: deque[State], width: int = WIDE, *, stale: bool = False) -> Group:
    """`recent`: the last requests, the newest at the end. `width`: of the terminal, in columns. `stale`: the feed has
    ended, or says nothing."""
    told, since = state["verdict"], strftime("%H:%M:%S", localtime(state["now"]))
    verdict = Text(told["text"], _MOODS[told["mood"]])
    return Group(
        Text(f"edgeproxy {state['version']}  ", "dim")
        + (Text(f"no news since {since}: these figures are old", "bold yellow") if stale else verdict),
        _figures(state),
        _nodes(state, wide=width >= WIDE),
        _requests(recent, wide=width >= WIDE),
    )


def _figures(state: State) -> Text:
    first, lately = state["first_token"], state["lately"]
    total = lately["answered"] + lately["failed"]
    share = f"{lately['within'] / total:.1%}" if total else _NONE
    burn = " ".join(_burn(pair) for pair in state["burn"])
    parts = (f"p50 {_ms(first['p50'])}", f"p95 {_ms(first['p95'])}", f"within {state['budget_ms']:g} ms {share}")
    return Text("  ".join((*parts, f"burn {burn}")))


def _burn(pair: State) -> str:
    """Burning is `3.6/3.9!`; in brackets what rests on too few requests to tell."""
    told = f"{_rate(pair['long'], 1)}/{_rate(pair['short'], 1)}"
    return {"few": f"({told})", "burning": f"{told}!"}.get(pair["state"], told)


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
