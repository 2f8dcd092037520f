"""What differs in the slow ones: attributes that are more frequent among requests over their budget than among all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]

LEAST_SLOW = 5
"""Fewer slow requests with an attribute are chance."""
LEAST_LIFT = 1.2
SHOWN = 8
_PROMPT_EDGES = (64, 256, 1024, 4096)
_CLIENT_EDGES_MS = (10, 50, 100)


class Difference(NamedTuple):
    attribute: str
    value: str
    slow: int
    all: int
    lift: float
    """Its share among the slow over its share among all."""


def contrast(records: Iterable[Record]) -> list[Difference]:
    """`records`: as they are logged. The greatest lift first; empty where nothing is slow, or nothing else is."""
    answered = [record for record in records if record["wait_s"] is not None]
    slow = [record for record in answered if record["wait_s"] > record["budget_s"]]
    if len(slow) < LEAST_SLOW or len(slow) == len(answered):
        return []
    of_slow, of_all = _counts(slow), _counts(answered)
    found = [
        Difference(name, value, count, of_all[name, value], count / len(slow) / (of_all[name, value] / len(answered)))
        for (name, value), count in of_slow.items()
        if count >= LEAST_SLOW
    ]
    telling = [difference for difference in found if difference.lift >= LEAST_LIFT]
    return sorted(telling, key=lambda difference: (-difference.lift, -difference.slow))[:SHOWN]


def nearest(records: Sequence[Record], seconds: float | None) -> Record | None:
    """The request that waited for its first token nearest to `seconds`; the newest of equals."""
    answered = [record for record in reversed(records) if record["wait_s"] is not None]
    if seconds is None or not answered:
        return None
    return min(answered, key=lambda record: abs(float(record["wait_s"]) - seconds))


def _counts(records: Iterable[Record]) -> Counter[tuple[str, str]]:
    return Counter(pair for record in records for pair in _attributes(record))


def _attributes(record: Record) -> Iterator[tuple[str, str]]:
    for name in ("region", "node", "model", "protocol", "reason"):
        if record[name] is not None:
            yield name, str(record[name])
    yield "stream", "yes" if record["stream"] else "no"
    yield "failed over", "yes" if record["failures"] else "no"
    if record["client_s"] is not None:
        yield "client's round trip", _distance(record["client_s"])
    prompt, cached = record["prompt_tokens"], record["cached_tokens"]
    if prompt:
        yield "prompt tokens", _class(prompt)
        if cached is not None:
            yield "cached", "most" if cached > prompt / 2 else "some" if cached else "none"


def _distance(seconds: float) -> str:
    for edge in _CLIENT_EDGES_MS:
        if seconds * 1e3 <= edge:
            return f"up to {edge} ms"
    return f"over {_CLIENT_EDGES_MS[-1]} ms"


def _class(tokens: int) -> str:
    for edge in _PROMPT_EDGES:
        if tokens <= edge:
            return f"up to {edge:,}"
    return f"over {_PROMPT_EDGES[-1]:,}"
