"""Requests from public traces: when, from where, how long, and what they share with earlier ones."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice, repeat
from math import pi, sin
from pathlib import Path
from random import Random
from typing import NamedTuple

MOONCAKE_BLOCK = 512
FITTED = 0.99
"""Lengths are scaled so that this share of requests fits the context; the rest is cut."""


class Asked(NamedTuple):
    """What a router can know of a request: nothing of how long the answer will be."""

    number: int
    at: float
    prompt: int
    """Tokens."""
    blocks: tuple[int, ...]
    """Ids of its leading blocks; equal ids stand for equal prefixes."""
    session: int
    """Requests of one conversation share it; 0 where none is known."""


class Request(NamedTuple):
    asked: Asked
    origin: int
    """The region whose proxy it comes to."""
    output: int
    """Tokens of the answer."""


class Entry(NamedTuple):
    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    entries: Sequence[Entry]
    """In order of time, from 0 s."""
    block_tokens: int

    @property
    def span_s(self) -> float:
        return max(self.entries[-1].at, 1e-9) * len(self.entries) / max(len(self.entries) - 1, 1)

    @property
    def mean_prompt(self) -> float:
        return sum(entry.prompt for entry in self.entries) / len(self.entries)

    @property
    def mean_output(self) -> float:
        return sum(entry.output for entry in self.entries) / len(self.entries)

    def fitted(self, context: int) -> Trace:
        """Scaled down, never up, to a model of `context` positions; sharing stays as it is."""
        sums = sorted(entry.prompt + entry.output for entry in self.entries)
        scale = min(context / sums[min(int(len(sums) * FITTED), len(sums) - 1)], 1.0)
        block = max(round(self.block_tokens * scale), 1)
        return Trace([_fitted(entry, scale, block, context) for entry in self.entries], block)

    def first(self, count: int) -> Trace:
        return replace(self, entries=self.entries[:count])


def _fitted(entry: Entry, scale: float, block: int, context: int) -> Entry:
    output = min(max(round(entry.output * scale), 1), context // 2)
    prompt = min(max(round(entry.prompt * scale), 1), context - output)
    return Entry(entry.at, prompt, output, entry.blocks[: prompt // block])


def read(path: Path) -> Trace:
    """A Mooncake trace (.jsonl) or an Azure LLM trace (.csv). Raises OSError, and ValueError where it is neither."""
    try:
        if path.suffix == ".jsonl":
            trace = Trace(list(_mooncake(path)), MOONCAKE_BLOCK)
        else:
            trace = Trace(list(_azure(path)), MOONCAKE_BLOCK)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: neither a Mooncake .jsonl nor an Azure LLM .csv trace ({error!r})") from error
    if not trace.entries:
        raise ValueError(f"{path}: the trace is empty")
    return trace


def _mooncake(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            one = json.loads(line)
            blocks = tuple(map(int, one["hash_ids"]))
            yield Entry(one["timestamp"] / 1e3, int(one["input_length"]), int(one["output_length"]), blocks)


def _azure(path: Path) -> Iterator[Entry]:
    with path.open(encoding="utf-8", newline="") as file:
        start: datetime | None = None
        for row in csv.DictReader(file):
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            start = start or at
            yield Entry((at - start).total_seconds(), int(row["ContextTokens"]), int(row["GeneratedTokens"]), ())


@dataclass(frozen=True, slots=True)
class Demand:
    """Where requests come from and how fast. A day is as long as the replayed trace."""

    weights: Sequence[float]
    """Of each region's users."""
    stretch: float
    """Seconds of the run for each second of the trace."""
    swing: float = 0.5
    """How far a region's demand rises above and falls below its mean over the day; 0 is none, below 1."""
    herds: Sequence[tuple[float, int]] = ()
    """(when, how many): requests that come at one instant, from everywhere."""


def requests(trace: Trace, demand: Demand, count: int, rng: Random) -> Iterator[Request]:
    """`count` requests in order of time; the trace is repeated with fresh conversations as often as it takes.

    A conversation stays with the proxy that it began at. It is recognised by its blocks after the first, which all
    requests of the Mooncake trace share.
    """
    day = trace.span_s * demand.stretch
    owners: dict[int, tuple[int, int]] = {}
    for number, (at, entry) in enumerate(islice(_merged(trace, demand), count), 1):
        origin, session = next((owners[b] for b in reversed(entry.blocks[1:]) if b in owners), (-1, number))
        if origin < 0:
            origin = _drawn(demand, at / day, rng)
        owners.update(zip(entry.blocks[1:], repeat((origin, session))))
        asked = Asked(number, at, entry.prompt, entry.blocks, session if entry.blocks else 0)
        yield Request(asked, origin, entry.output)


def _merged(trace: Trace, demand: Demand) -> Iterator[tuple[float, Entry]]:
    """The trace over and over, and herds of its first requests in between."""
    herds = sorted(demand.herds)
    for at, entry in _repeated(trace, demand.stretch):
        while herds and herds[0][0] <= at:
            when, size = herds.pop(0)
            yield from ((when, member._replace(blocks=())) for member in islice(_cycled(trace), size))
        yield at, entry


def _repeated(trace: Trace, stretch: float) -> Iterator[tuple[float, Entry]]:
    fresh = 1 + max((block for entry in trace.entries for block in entry.blocks), default=0)
    turn = 0
    while True:
        offset = turn * fresh
        for entry in trace.entries:
            blocks = tuple([block + offset if block else 0 for block in entry.blocks]) if offset else entry.blocks
            yield (entry.at + turn * trace.span_s) * stretch, entry._replace(blocks=blocks)
        turn += 1


def _cycled(trace: Trace) -> Iterator[Entry]:
    while True:
        yield from trace.entries


def _drawn(demand: Demand, day: float, rng: Random) -> int:
    """A region by its users and its time of day; regions lie evenly around the world."""
    count = len(demand.weights)
    weights = [w * (1 + demand.swing * sin(2 * pi * (day + i / count))) for i, w in enumerate(demand.weights)]
    return rng.choices(range(count), weights)[0]
