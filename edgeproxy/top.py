"""The dashboard's first page in a terminal: the same feed, the same figures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from time import localtime, sleep, strftime
from typing import Any

import httpx
import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edgeproxy.admin_key import authorization, refused
from edgeproxy.protocol.openai.sse import SseError, SseParser

SHOWN = 12
REFUSED_SHOWN = 3
"""Of them: who is refused in a loop leaves room for who is served."""
WIDE = 100
"""Columns of a terminal that has room for everything..."""
MIDDLE = 76
"""...and for all that tells nodes and requests apart; below that, ids, states and times are what is left."""
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


def top(
    admin: str,
    console: Console,
    *,
    key: str | None = None,
    once: bool = False,
    wait: Callable[[float], None] = sleep,
) -> None:
    """Until interrupted; once where nobody watches a terminal. A feed that ends or falls silent is asked for again.

    `admin`: base URL of the admin listener; `key`: for one on another machine. `wait`: between two tries. Raises
    TopError where there never was a feed.
    """
    if once or not console.is_terminal:
        with closing(_states(admin, key)) as states:
            only = next(states, None)
        if only is None:
            raise TopError(f"{admin} tells nothing (its feed ended at once); try again")
        console.print(render(only, newest(only["recent"]), console.width))
        return
    recent: list[State] = []
    shown: State | None = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                for shown in _states(admin, key):
                    recent = newest([*recent, *shown["recent"]])
                    live.update(render(shown, recent, console.width), refresh=True)
            except TopError:
                if shown is None:
                    raise
            if shown is not None:
                live.update(render(shown, recent, console.width, stale=True), refresh=True)
            wait(AGAIN_S)


def _states(admin: str, key: str | None) -> Generator[State, None, None]:
    """Until the feed ends. Raises TopError."""
    parser = SseParser(64 << 20)
    try:
        with httpx.stream("GET", f"{admin}/admin/events", headers=authorization(key), timeout=TIMEOUT) as answer:
            if (told := refused(admin, answer.status_code, key)) is not None:
                raise TopError(told)
            if answer.status_code != 200:
                raise TopError(f"{admin} answers {answer.status_code}; is it the admin listener, of this version?")
            for data in answer.iter_bytes():
                yield from (orjson.loads(event.data) for event in parser.feed(data) if event.data)
    except (httpx.HTTPError, httpx.InvalidURL, SseError) as error:
        raise TopError(f"{admin} tells nothing ({error}); is the proxy running, and its admin listener?") from None


def newest(requests: Sequence[State]) -> list[State]:
    """The oldest first, as they come; each once, though a feed that begins again tells them again."""
    kept, refused = list[State](), 0
    for request in reversed({(one["request_id"], one["time"]): one for one in requests}.values()):
        refused += (turned_away := request["kind"] in ("refused", "left"))
        if not turned_away or refused <= REFUSED_SHOWN:
            kept.append(request)
    return kept[:SHOWN][::-1]


def render(state: State, recent: Sequence[State], width: int = WIDE, *, stale: bool = False) -> Group:
    """`recent`: the last requests, the newest at the end. `width`: of the terminal, in columns. `stale`: the feed has
    ended, or says nothing."""
    told, since = state["verdict"], strftime("%H:%M:%S", localtime(state["now"]))
    verdict = Text(told["text"], _MOODS[told["mood"]])
    return Group(
        Text(f"edgeproxy {state['version']}  ", "dim")
        + (Text(f"no news since {since}: these figures are old", "bold yellow") if stale else verdict),
        *_lines(_figures(state), width),
        _nodes(state, width),
        _requests(recent, width),
    )


def _figures(state: State) -> Iterator[str]:
    first, lately = state["first_token"], state["lately"]
    total = lately["answered"] + lately["failed"]
    share = f"{lately['within'] / total:.1%}" if total else _NONE
    yield f"p50 {_ms(first['p50'])}"
    yield f"p95 {_ms(first['p95'])}"
    yield f"within {_budget(state)} {share}"
    for number, pair in enumerate(state["burn"]):
        yield _burn(pair) if number else f"burn {_burn(pair)}"
    if any(pair["state"] == "few" for pair in state["burn"]):
        yield "(too few to tell)"
    yield f"5 min: {lately['answered'] + lately['untimed']} answered"
    yield from (f"{lately[name]} {name}" for name in ("failed", "refused", "left") if lately[name])


def _budget(state: State) -> str:
    """What first tokens were charged to of late: models, tenants and requests may have budgets of their own."""
    least, most = [seconds * 1e3 for seconds in state["budgets"]] or [state["budget_ms"]] * 2
    if most >= 10_000:
        return f"{least / 1e3:g} s" if least == most else f"{least / 1e3:g}-{most / 1e3:g} s"
    return f"{least:g} ms" if least == most else f"{least:g}-{most:g} ms"


def _lines(parts: Iterable[str], width: int) -> list[Text]:
    """As many to a line as there is room for: a figure is not parted from its unit."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + 2 + len(part) > width:
            lines.append("")
        lines[-1] += f"  {part}" if lines[-1] else part
    return [Text(line, no_wrap=True, overflow="ellipsis") for line in lines]


def _burn(pair: State) -> str:
    """Burning is `3.6/3.9!`; in brackets what rests on too few requests to tell."""
    told = f"{_rate(pair['long'], 1)}/{_rate(pair['short'], 1)}"
    return {"few": f"({told})", "burning": f"{told}!"}.get(pair["state"], told)


def _nodes(state: State, width: int) -> Table:
    """A line a node, however long a trouble is: what has no room is cut, and in a narrow terminal left out."""
    wide, narrow = width >= WIDE, width < MIDDLE
    table = _table()
    table.add_column("region", no_wrap=True, overflow="ellipsis", min_width=8)
    table.add_column("node", no_wrap=True, overflow="ellipsis", min_width=12)
    table.add_column("state", no_wrap=True, overflow="ellipsis", max_width=40 if wide else 20)
    more = () if narrow else ("queue", "KV", *(("KV reuse", "SUSI") if wide else ()))
    for name in ("rtt", "load", *more):
        table.add_column(name, justify="right", no_wrap=True)
    for node in state["nodes"]:
        report, shown = node["report"], node["instruments"] or {}
        good = node["ready"] and node["breaker"] == "closed"
        trouble = node["trouble"] or f"breaker {node['breaker']}"
        home = node["region"] == state["home"]
        cells = (
            _ms(node["rtt_s"]),
            f"{report['running']} + {report['waiting']}" if report else str(node["in_flight"]),
            _ms(node["queue_s"]),
            _percent(node["kv_used"]),
            _percent(shown.get("kvr")),
            _rate(shown.get("susi")),
        )
        table.add_row(
            f"{node['region']}{' (home)' if home and wide else '*' if home else ''}",
            node["name"],
            Text("ready", "green") if good else Text(trouble, "red"),
            *cells[: 2 + len(more)],
        )
    return table


def _requests(recent: Iterable[State], width: int) -> Table:
    wide, narrow = width >= WIDE, width < MIDDLE
    table = _table()
    table.add_column("request", no_wrap=True, overflow="ellipsis", min_width=_ID_WIDTH)
    where = () if narrow else ("region", "reason", *(("runner-up",) if wide else ()))
    for name in (*where, "status"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    table.add_column("first token", justify="right", no_wrap=True)
    for request in reversed(list(recent)):
        first, other = request["wait_s"], request["runner_up"]
        late = first is not None and first > request["budget_s"]
        runner_up = f"{other['node']} {_ms(other['total_s'])}" if other else _NONE
        places = (request["region"] or _NONE, request["reason"] or _NONE, runner_up)
        table.add_row(
            request["request_id"],
            *places[: len(where)],
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
