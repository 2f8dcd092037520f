"""The last requests of each kind, so that many of one kind push out none of another: a client with a wrong model's name
is refused a thousand times in seconds, and what it flushed would be what users waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from heapq import merge
from operator import itemgetter
from typing import Any, Generic, TypeVar

Record = Mapping[str, Any]
T = TypeVar("T")
_REFUSED = 429
_FAILED = 500


class Kind(Enum):
    ANSWERED = "answered"
    FAILED = "failed"
    """It should have been answered: the objective counts it."""
    REFUSED = "refused"
    """For what the client had asked, or it left before it was answered."""


def kind_of(record: Record) -> Kind:
    """`record`: as it is logged."""
    status = record["status"]
    if record["wait_s"] is not None:
        return Kind.ANSWERED
    if record["client_gone"]:
        return Kind.REFUSED
    if status == _REFUSED or status >= _FAILED:
        return Kind.FAILED
    return Kind.ANSWERED if status < 400 else Kind.REFUSED


class Rings(Generic[T]):
    """What is kept of a request, for the last `kept` of each kind."""

    def __init__(self, kept: int) -> None:
        self._rings: dict[Kind, deque[tuple[int, str, T]]] = {kind: deque(maxlen=kept) for kind in Kind}
        self._count = 0

    def add(self, record: Record, value: T) -> Kind:
        kind = kind_of(record)
        self._count += 1
        self._rings[kind].append((self._count, record["request_id"], value))
        return kind

    def of(self, kind: Kind) -> list[T]:
        """The oldest first."""
        return [value for _, _, value in self._rings[kind]]

    def newest(self) -> Iterator[T]:
        """Of all kinds, the newest first."""
        return (value for _, _, value in self._backwards())

    def find(self, request_id: str) -> T | None:
        """The newest of that id: clients may name their requests as they like."""
        return next((value for _, name, value in self._backwards() if name == request_id), None)

    def _backwards(self) -> Iterator[tuple[int, str, T]]:
        return merge(*(reversed(ring) for ring in self._rings.values()), key=itemgetter(0), reverse=True)
