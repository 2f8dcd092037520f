"""What goes wrong in a run, as it is written on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf


class FaultError(ValueError):
    """A fault that is not of the form it must have; the message says which."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Nodes that die at `start`, with everything on them, and are back, empty, at `end`. Seconds."""

    nodes: Sequence[int]
    start: float
    end: float


def outages(fail: Sequence[str], flap: Sequence[str], regions: Sequence[str], nodes: int) -> list[Outage]:
    """`fail`: "PLACE=FROM-UNTIL"; `flap`: "PLACE=SECONDS", so long up, then so long down, again and again.

    PLACE is a region, all of it, or one node of it: REGION/INDEX. `nodes`: how many each region has.
    """
    found = []
    for text in fail:
        place, _, span = text.partition("=")
        start, _, end = span.partition("-")
        since, until = _number(start, text), _number(end, text) if end else inf
        if since >= until:
            raise FaultError(f"{text!r}: the end must come after the beginning")
        found.append(Outage(_place(place, text, regions, nodes), since, until))
    for text in flap:
        place, _, period = text.partition("=")
        half = _number(period, text)
        if half <= 0:
            raise FaultError(f"{text!r}: a flap needs a time above zero")
        at = _place(place, text, regions, nodes)
        found.extend(Outage(at, start, start + half) for start in _flaps(half))
    return found


FLAPS = 1000
"""Of one place, at most."""


def _flaps(half: float) -> Iterator[float]:
    return (half * (2 * turn + 1) for turn in range(FLAPS))


def herds(texts: Sequence[str]) -> list[tuple[float, int]]:
    """ "COUNT@SECOND" each -> (second, count)."""
    found = []
    for text in texts:
        count, _, when = text.partition("@")
        if not count.isdecimal():
            raise FaultError(f"{text!r} is not of the form COUNT@SECOND, as 500@60")
        found.append((_number(when, text), int(count)))
    return found


def _place(place: str, text: str, regions: Sequence[str], nodes: int) -> Sequence[int]:
    name, _, index = place.partition("/")
    if name not in regions:
        raise FaultError(f"{text!r}: there is no region {name!r}, only {', '.join(regions)}")
    first = list(regions).index(name) * nodes
    if not index:
        return range(first, first + nodes)
    if not index.isdecimal() or int(index) >= nodes:
        raise FaultError(f"{text!r}: region {name} has nodes 0 to {nodes - 1}")
    return (first + int(index),)


def _number(value: str, text: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise FaultError(f"{text!r}: {value!r} is no number of seconds")
    return number
