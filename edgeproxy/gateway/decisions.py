"""Why requests went where they went: the last decisions with every term, and what came of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from edgeproxy.observe.rings import Kind, Rings
from edgeproxy.routing.choose import Decision, Option
from edgeproxy.upstream.node import Node

KEPT = 1000
_OUTCOME = (
    "time",
    "request_id",
    "tenant",
    "model",
    "status",
    "code",
    "client_gone",
    "region",
    "node",
    "attempts",
    "failures",
    "resumed_on",
    "hedge",
    "hold_s",
    "first_token_s",
)


class Decisions:
    """The last KEPT of those answered, failed and refused each. What is kept is worked out when somebody asks."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept: Rings[tuple[Decision[Node], Mapping[str, Any]]] = Rings(kept)

    def add(self, kind: Kind, made: Decision[Node], record: Mapping[str, Any]) -> None:
        """`made`: noted. `record`: the request's line in the log."""
        self._kept.add(kind, record["request_id"], (made, record))

    def latest(self, count: int) -> list[dict[str, Any]]:
        """The newest first."""
        return [_view(*entry) for entry in islice(self._kept.newest(), count)]

    def runners_up(self, request_ids: Collection[str], count: int) -> dict[str, dict[str, Any] | None]:
        """Of these requests, as far as they are among the last `count` of their kind."""
        last = self._kept.newest(dict.fromkeys(Kind, count))
        found = [(record["request_id"], made) for made, record in last if record["request_id"] in request_ids]
        return {request_id: _option(made.options()[1]) for request_id, made in reversed(found)}

    def of(self, request_id: str) -> dict[str, Any] | None:
        """The newest of that id: clients may name their requests as they like."""
        found = self._kept.find(request_id)
        return None if found is None else _view(*found)


def _view(made: Decision[Node], record: Mapping[str, Any]) -> dict[str, Any]:
    expected, shown = record["expected_s"], record["shown_s"]
    first, runner_up = made.options()
    return {
        **{name: record[name] for name in _OUTCOME},
        "reason": made.reason,
        "hot": made.hot,
        "prompt_tokens": round(made.wanted.tokens),
        "chosen": _option(first),
        "runner_up": _option(runner_up),
        "expected_s": expected,
        "actual_s": shown,
        "error_s": None if expected is None or shown is None else expected - shown,
        "actual": {name: record[name] for name in ("rtt_s", "edge_s", "parse_s", "queue_s", "prefill_s", "first_s")},
    }


def _option(option: Option[Node] | None) -> dict[str, Any] | None:
    if option is None:
        return None
    terms = {f"{name}_s": seconds for name, seconds in option.forecast._asdict().items()}
    return {
        "node": option.node.name,
        "region": option.node.region,
        **terms,
        "total_s": option.forecast.total,
        "cached_tokens": round(option.held),
    }
