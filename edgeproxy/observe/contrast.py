"""What differs in the slow ones: attributes that are more frequent among requests over their budget than among all."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

Record = Mapping[str, Any]
_Attribute = tuple[str, str]

LEAST_SLOW = 5
"""Fewer slow requests with an attribute are chance."""
LEAST_LIFT = 1.2
SHOWN = 8
_NAMED = ("region", "node", "model", "protocol", "reason")
_PROMPT_EDGES = (64, 256, 1024, 4096)
_CLIENT_EDGES_MS = (10, 50, 100)


class Difference(NamedTuple):
    attribute: str
    value: str
    slow: int
    all: int
    lift: float
    """Its share among the slow over its share among all."""


class _Answered(NamedTuple):
    attributes: tuple[_Attribute, ...]
    slow: bool


class Contrast:
    """Counts kept up to date as records come and go, so that a look costs what is new and not all that is kept."""

    def __init__(self, kept: int) -> None:
        """`kept`: how many of the last records are compared."""
        self._kept = kept
        self._window: deque[_Answered | None] = deque()
        """None for a record that no first token came of."""
        self._all: Counter[_Attribute] = Counter()
        self._slow: Counter[_Attribute] = Counter()
        self._answered = 0
        self._late = 0

    def add(self, records: Sequence[Record]) -> None:
        """As they are logged, the oldest first."""
        new = [_answered(record) for record in records[-self._kept :]]
        leaving = max(len(self._window) + len(new) - self._kept, 0)
        gone = [self._window.popleft() for _ in range(leaving)]
        self._window.extend(new)
        if 2 * len(new) > self._kept:  # to count anew is cheaper
            self._all, self._slow, self._answered, self._late = Counter(), Counter(), 0, 0
            gone, new = [], list(self._window)
        self._count(new, 1)
        self._count(gone, -1)

    def differences(self) -> list[Difference]:
        """The greatest lift first; empty where nothing is slow, or nothing else is."""
        if self._late < LEAST_SLOW or self._late == self._answered:
            return []
        found = [
            Difference(name, value, slow, every, slow / self._late / (every / self._answered))
            for (name, value), slow in self._slow.items()
            if slow >= LEAST_SLOW and (every := self._all[name, value])
        ]
        telling = [difference for difference in found if difference.lift >= LEAST_LIFT]
        return sorted(telling, key=_rank)[:SHOWN]

    def _count(self, records: Iterable[_Answered | None], change: int) -> None:
        answered = [record for record in records if record is not None]
        late = [record for record in answered if record.slow]
        self._answered += change * len(answered)
        self._late += change * len(late)
        for counts, found in ((self._all, answered), (self._slow, late)):
            attributes = Counter(chain.from_iterable([record.attributes for record in found]))
            if change > 0:
                counts.update(attributes)
            else:
                counts -= attributes  # in place; what nobody has any more is dropped


def _rank(found: Difference) -> tuple[float, int, int, str]:
    """Of equals the one that is named first: a region says more than its only node."""
    name = found.attribute
    return -found.lift, -found.slow, _NAMED.index(name) if name in _NAMED else len(_NAMED), name + found.value


def _answered(record: Record) -> _Answered | None:
    wait = record["wait_s"]
    return None if wait is None else _Answered(tuple(_attributes(record)), wait > record["budget_s"])


def nearest(records: Sequence[Record], seconds: float | None) -> Record | None:
    """The request that waited for its first token nearest to `seconds`; the newest of equals."""
    answered = [record for record in reversed(records) if record["wait_s"] is not None]
    if seconds is None or not answered:
        return None
    return min(answered, key=lambda record: abs(float(record["wait_s"]) - seconds))


def _attributes(record: Record) -> Iterator[tuple[str, str]]:
    for name in _NAMED:
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
