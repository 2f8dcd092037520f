"""The last requests of each kind, so that many of one kind push out none of another: a client with a wrong model's name
is refused a thousand times in seconds, and what it flushed would be what users waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from heapq import merge
from itertools import count, islice, takewhile
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from edgeproxy.protocol.openai.codes import OWN_BUDGET

Record = Mapping[str, Any]
T = TypeVar("T")
_REFUSED = 429
_FAILED = 500


class Kind(Enum):
    ANSWERED = "answered"
    FAILED = "failed"
    """It should have been answered: the objective counts it. Streams that clients left late, too."""
    REFUSED = "refused"
    """For what the client had asked."""
    LEFT = "left"
    """By its client, before it was answered, and not known to have been late."""


def kind_of(record: Record) -> Kind:
    """`record`: as it is logged."""
    status = record["status"]
    if record["wait_s"] is not None:
        return Kind.ANSWERED
    if record["client_gone"]:
        gave_up = record["stream"] and record["total_s"] > record["budget_s"]
        return Kind.FAILED if gave_up else Kind.LEFT
    if record["code"] == OWN_BUDGET:
        return Kind.REFUSED
    if status == _REFUSED or status >= _FAILED:
        return Kind.FAILED
    return Kind.ANSWERED if status < 400 else Kind.REFUSED


ALL: Final[Mapping[Kind, int | None]] = MappingProxyType(dict.fromkeys(Kind))


class Rings(Generic[T]):
    """What is kept of a request, for the last `kept` of each kind."""

    def __init__(self, kept: int) -> None:
        self._rings: dict[Kind, deque[tuple[int, str, T]]] = {kind: deque(maxlen=kept) for kind in Kind}
        self.count = 0
        """Of those that were ever added."""

    def add(self, kind: Kind, request_id: str, value: T) -> None:
        self.count += 1
        self._rings[kind].append((self.count, request_id, value))

    def extend(self, kinds: Sequence[Kind], request_ids: Sequence[str], values: Sequence[T]) -> None:
        """`add` for several."""
        first = kinds[0]
        if kinds.count(first) == len(kinds):  # as most are, and then it is one call
            self._rings[first].extend(zip(count(self.count + 1), request_ids, values, strict=False))
            self.count += len(kinds)
        else:
            for one in zip(kinds, request_ids, values, strict=True):
                self.add(*one)

    def of(self, kind: Kind) -> list[T]:
        """The oldest first."""
        return [value for _, _, value in self._rings[kind]]

    def newest(self, most: Mapping[Kind, int | None] = ALL, since: int = 0) -> Iterator[T]:
        """The newest first, of each kind at most so many; those that came when `count` was above `since`."""
        found = self._backwards(most)
        return (value for _, _, value in takewhile(lambda entry: entry[0] > since, found))

    def find(self, request_id: str) -> T | None:
        """The newest of that id: clients may name their requests as they like."""
        return next((value for _, name, value in self._backwards(ALL) if name == request_id), None)

    def _backwards(self, most: Mapping[Kind, int | None]) -> Iterator[tuple[int, str, T]]:
        rings = [islice(reversed(ring), most[kind]) for kind, ring in self._rings.items()]
        return merge(*rings, key=itemgetter(0), reverse=True)
