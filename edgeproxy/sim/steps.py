"""How long a step of a node takes: recordings of the native engine, interpolated, with the spread that they had.

A recording (scripts/bench/record_steps.py) holds the kernel times of steps by decode rows, tokens of prefill, and
context. What was not recorded lies on the line between its neighbours, or beyond the last two.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, product
from math import sqrt
from pathlib import Path
from random import Random
from statistics import fmean, median

Cell = tuple[int, int, int]
"""(decode rows, prefill tokens, context)"""


@dataclass(frozen=True, slots=True)
class Recording:
    """Seconds of steps, and where they are from."""

    source: str
    steps: Mapping[Cell, Sequence[float]]


def recorded(path: Path | None = None) -> Recording:
    """The recording at `path`, else the one that comes with the package. Raises ValueError where it is none."""
    text = (path or files("edgeproxy.sim") / "data" / "steps.json").read_text(encoding="utf-8")
    try:
        data = json.loads(text)
        steps = {(int(s["rows"]), int(s["prefill"]), int(s["context"])): s["seconds"] for s in data["steps"]}
        return Recording(f"{data['machine']}, {data['numerics']}, {data['threads']} threads, {data['date']}", steps)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: no recording of steps ({error!r}); make one with record_steps.py") from error


class StepTimes:
    """Seconds of a step. One instance serves all nodes: how fast a node is divides what is read here."""

    def __init__(self, recording: Recording) -> None:
        """Raises ValueError unless every combination of two or more rows, chunks and contexts was recorded."""
        cells = recording.steps
        self._rows, self._prefill, self._contexts = (sorted({cell[i] for cell in cells}) for i in range(3))
        missing = set(product(self._rows, self._prefill, self._contexts)) - set(cells)
        axes = (self._rows, self._prefill, self._contexts)
        if min(map(len, axes)) < 2 or any(cell[:2] != (0, 0) for cell in missing):
            raise ValueError(f"the recording lacks {len(missing)} combinations of rows, chunks and contexts")
        self._medians = {cell: median(seconds) for cell, seconds in cells.items()}
        # Weights are read once a step, however little there is to do.
        self._medians |= {cell: self._medians[self._rows[1], 0, cell[2]] for cell in missing}
        self._spread = sorted(chain.from_iterable([s / self._medians[c] for s in cells[c]] for c in cells))
        self._mean = fmean(self._spread)
        self._curves: dict[tuple[int, int], tuple[float, ...]] = {}

    def seconds(self, rows: int, prefill: int, context: float) -> float:
        """Of one step: `rows` decoding, a chunk of `prefill` tokens, `context` positions before each token in mean."""
        curve = self._curves.get((rows, prefill))
        if curve is None:
            curve = self._curves[rows, prefill] = self._curve(rows, prefill)
        knots = self._contexts
        i = min(max(bisect_right(knots, context) - 1, 0), len(knots) - 2)
        share = max((context - knots[i]) / (knots[i + 1] - knots[i]), 0.0)
        return curve[i] + share * (curve[i + 1] - curve[i])

    def noise(self, steps: int, rng: Random) -> float:
        """What `steps` steps in a row took, by their medians; the more of them, the nearer to the mean."""
        return self._mean + (self._spread[int(rng.random() * len(self._spread))] - self._mean) / sqrt(steps)

    def prefill_rate(self, chunk: int = 128) -> float:
        """Tokens per second of a prompt that runs alone, at its beginning."""
        return chunk / self.seconds(0, chunk, 0.0)

    def _curve(self, rows: int, prefill: int) -> tuple[float, ...]:
        """At each recorded context, from the four cells around."""
        i, u = _place(self._rows, rows)
        j, v = _place(self._prefill, prefill)
        weights = (
            (self._rows[i], self._prefill[j], (1 - u) * (1 - v)),
            (self._rows[i], self._prefill[j + 1], (1 - u) * v),
            (self._rows[i + 1], self._prefill[j], u * (1 - v)),
            (self._rows[i + 1], self._prefill[j + 1], u * v),
        )
        return tuple(
            sum(weight * self._medians[r, p, context] for r, p, weight in weights) for context in self._contexts
        )


def _place(knots: Sequence[int], value: int) -> tuple[int, float]:
    """The interval that `value` lies in, the last one beyond the end, and how far along it."""
    i = min(max(bisect_right(knots, value) - 1, 0), len(knots) - 2)
    return i, (value - knots[i]) / (knots[i + 1] - knots[i])
