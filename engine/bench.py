"""`engine bench`: tokens per second of the executor alone. Plans come from a loop, not from the scheduler."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

from engine import startup
from engine.executor.base import Executor
from engine.model.image import Progress
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan

PROMPTS: Final = (512, 1800)
STREAMS: Final = (1, 8, 16)
DECODED: Final = 32
"""Tokens of each stream that are timed, after the first."""
CONTEXT: Final = 62
"""Tokens that stand before a decoded one."""
LONG_CONTEXT: Final = 1800
REUSED: Final = 1792
"""Tokens of a warm prompt that the KV pool has; `WARM_SUFFIX` more are new."""
WARM_SUFFIX: Final = 22


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    tokens_per_s: float
    """The median of the runs."""
    least: float
    most: float


def run(
    options: startup.ModelOptions, progress: Progress, runs: int, as_json: bool, told: Callable[[str], None]
) -> None:
    """told: what is going on, a line at a time. Raises ValueError and StartError as a start does."""
    image = startup.open_image(options, progress)
    options = _with_room(options, told)
    executor = startup.open_executor(image, options)
    try:
        results = []
        for result in measure(executor, runs):
            results.append(result)
            told(f"{result.name}: {result.tokens_per_s:.1f} tokens/s")
    finally:
        executor.close()
    if as_json:
        found = {"numerics": executor.numerics, "threads": options.threads, "runs": runs}
        found |= {"kv_tokens": options.kv_tokens, "slots": options.slots}
        print(json.dumps(found | {"results": [asdict(result) for result in results]}))
    else:
        _print(results, f"{executor.numerics}, {options.threads} threads, medians of {runs}")


def _with_room(options: startup.ModelOptions, told: Callable[[str], None]) -> startup.ModelOptions:
    """Memory for every case, also where less was asked for."""
    room = max(LONG_CONTEXT + DECODED + BLOCK_TOKENS, max(STREAMS) * (CONTEXT + DECODED + BLOCK_TOKENS))
    enough = replace(options, kv_tokens=max(options.kv_tokens, room), slots=max(options.slots, max(STREAMS)))
    if enough != options:
        told(f"the cases need more memory: measured with --kv-tokens {enough.kv_tokens} --slots {enough.slots}")
    return enough


def measure(executor: Executor, runs: int) -> Iterator[Result]:
    """Each case when it has been run so many times."""
    bench = _Bench(executor)
    limits = executor.limits
    cases: list[tuple[str, Callable[[], float]]] = [
        *(
            (f"prefill {count}", lambda count=count: bench.prefill(count))
            for count in PROMPTS
            if count < limits.context
        ),
        *(
            (f"decode, {count} stream{'s' if count > 1 else ''}", lambda count=count: bench.decode(count))
            for count in STREAMS
        ),
    ]
    if limits.context > LONG_CONTEXT + DECODED:
        cases.append((f"decode at {LONG_CONTEXT}", lambda: bench.decode(1, LONG_CONTEXT)))
        cases.append((f"prompt, {REUSED} of {REUSED + WARM_SUFFIX} in the pool", bench.warm))
    bench.prefill(limits.step_tokens)  # warm
    bench.decode(max(STREAMS))
    for name, case in cases:
        found = [case() for _ in range(runs)]
        yield Result(name, statistics.median(found), min(found), max(found))


class _Bench:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._step = 0

    def prefill(self, tokens: int) -> float:
        """Tokens per second of one prompt, in chunks as large as a step may be."""
        began = time.perf_counter()
        self._fill(0, tokens)
        return tokens / (time.perf_counter() - began)

    def decode(self, streams: int, context: int = CONTEXT) -> float:
        """Tokens per second of all streams together, two plans in flight."""
        for slot in range(streams):
            self._fill(slot, context)
        began = time.perf_counter()
        for position in range(context, context + DECODED):
            rows = tuple(Row(slot, position, (), self._blocks(slot, position + 1), True) for slot in range(streams))
            self._submit(rows)
            if position > context:
                self._executor.collect()
        self._executor.collect()
        return streams * DECODED / (time.perf_counter() - began)

    def warm(self) -> float:
        """Prompt tokens per second of a prompt of which all but the end has been computed before."""
        self._fill(0, REUSED)
        began = time.perf_counter()
        self._fill(0, REUSED + WARM_SUFFIX, known=REUSED)
        return (REUSED + WARM_SUFFIX) / (time.perf_counter() - began)

    def _fill(self, slot: int, tokens: int, known: int = 0) -> None:
        size = self._executor.limits.step_tokens
        for start in range(known, tokens, size):
            end = min(start + size, tokens)
            ids = tuple((7 * slot + 31 * position) % self._executor.limits.vocab for position in range(start, end))
            opens = Sampling(temperature=0.0) if start == known else None
            self._submit((Row(slot, start, ids, self._blocks(slot, end), end == tokens, opens),))
            self._executor.collect()

    def _blocks(self, slot: int, tokens: int) -> tuple[int, ...]:
        """Each stream has its own stretch of the pool. A long prompt, which runs alone, takes the others' too."""
        each = -(-(CONTEXT + DECODED) // BLOCK_TOKENS)
        return tuple(range(slot * each, slot * each - (-tokens // BLOCK_TOKENS)))

    def _submit(self, rows: tuple[Row, ...]) -> None:
        self._step += 1
        self._executor.submit(StepPlan(self._step, rows))


def _print(results: list[Result], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "tokens/s", "least", "most")
    for result in results:
        table.add_row(result.name, f"{result.tokens_per_s:.1f}", f"{result.least:.1f}", f"{result.most:.1f}")
    console = Console()
    console.print(title, soft_wrap=True)
    console.print(table)
