"""How fast is it, beside what the device can do? Ceilings are measured on the device at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from statistics import median
from typing import NamedTuple

import torch

from engine.executor.gpu.device import Device
from engine.executor.gpu.matrix import Matrix
from engine.executor.gpu.weights import Weights
from engine.gpu_check.correct import running
from engine.gpu_check.runner import Runner
from engine.gpu_check.table import Check, Line
from engine.gpu_check.watch import Watch
from engine.model.arch import LlamaConfig
from engine.model.gpu_layout import GpuSizes, kv_block_bytes
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan, StepResult

PREFILL, CONTEXT, STEPS = 2048, 512, 48
ROWS = (1, 8, 64)
LEAST_S = 0.3
"""Of decoding: GPM's counters want 0.1 s between two looks."""


class Ceiling(NamedTuple):
    bytes_per_s: float
    """Of a copy within the device, read and written bytes together."""
    flops: float
    """Of a large product in bf16, by torch."""


def ceiling() -> Ceiling:
    copied = _copied()
    x, w = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return Ceiling(copied, 2 * 8192**3 / _timed(lambda: x @ w))


def _copied() -> float:
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / _timed(lambda: target.copy_(source))


def _timed(work: Callable[[], object]) -> float:
    """Seconds of one, the median of ten."""
    found: list[float] = []
    for _ in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / 1000)
    return median(found[3:])


def check(
    name: str,
    config: LlamaConfig,
    device: Device,
    dtype: str,
    bits: int,
    most: Callable[[], Ceiling],
    watch: Watch,
    *,
    held: bool,
) -> Check:
    """held: the shares that are wanted of an 8B are asked of it."""

    def run() -> Iterator[Line]:
        blocks = -(-(CONTEXT + STEPS + 16) // BLOCK_TOKENS)
        sizes = GpuSizes(PREFILL, ROWS[-1], ROWS[-1] * blocks + PREFILL // BLOCK_TOKENS, 4096, dtype)
        ceilings = most()
        with running(config, device, dtype, bits, sizes, watch.upload()) as (executor, runner, phases):
            yield _started(name, phases)
            yield _widened(name, executor.widens)
            yield watch.link(name)
            yield _prefill(name, config, runner, ceilings, held)
            weights = sum(m.nbytes for m in _read(executor.weights))
            token = kv_block_bytes(config, sizes) // BLOCK_TOKENS
            for rows in ROWS:
                tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(rows)]
                read = weights + rows * CONTEXT * token
                yield from _decode(name, executor.device, runner, tables, read, ceilings, watch, held and rows == 1)
            yield _asked(name, executor.device, runner, tables)

    return run


def _started(name: str, phases: tuple[tuple[str, float], ...]) -> Line:
    """From nothing to the first token: two phases, and what of the executor's own lies in them."""
    parts = dict(phases)
    first = f"{parts.pop('opened') + parts['first step']:.2f} s: first step {parts.pop('first step'):.2f}"
    return Line(f"{name}: start to first token", ", ".join((first, *(f"{n} {s:.2f}" for n, s in parts.items()))))


def _widened(name: str, widens: bool) -> Line:
    """Without them prefill is slow, and this says why."""
    wanted = "the narrow ones' bits"
    return Line(f"{name}: wide tiles", wanted if widens else "other bits: not used", wanted, widens)


def _read(weights: Weights) -> list[Matrix]:
    """Matrices that a step reads whole."""
    return [*(matrix for layer in weights.layers for matrix in layer.matrices), weights.head]


def _prefill(name: str, config: LlamaConfig, runner: Runner, most: Ceiling, held: bool) -> Line:
    table = tuple(range(PREFILL // BLOCK_TOKENS))
    tokens = tuple(i % config.vocab for i in range(PREFILL))
    found = []
    for _ in range(5):
        runner.executor.submit(StepPlan(1, (Row(0, 0, tokens, table, False, Sampling(0.0)),)))
        result = runner.executor.collect()
        found.append(result.ended - result.started)
    seconds = median(found[1:])
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer = config.hidden * (2 * queries + 2 * keys + 3 * config.ffn) + queries * PREFILL
    share = 2 * PREFILL * config.layers * layer / seconds / most.flops
    found_text = f"{PREFILL / seconds:,.0f} tok/s, {share:.0%} of torch's rate"
    return Line(f"{name}: prefill of {PREFILL}", found_text, ">= 55 %" if held else "", share >= 0.55 if held else None)


def _decode(
    name: str,
    device: Device,
    runner: Runner,
    tables: list[tuple[int, ...]],
    read: int,
    most: Ceiling,
    watch: Watch,
    held: bool,
) -> Iterator[Line]:
    """A row for each of `tables`; a step reads `read` bytes."""
    rows = len(tables)
    for slot, table in enumerate(tables):
        runner.step(Row(slot, 0, tuple(range(CONTEXT)), table, True, Sampling(0.0)))
    before, busy = device.allocations(), watch.busy()
    results = list(_steps(runner, tables))
    told, asked = busy.line(f"{name}, {rows} rows"), device.allocations() - before
    steps = results[8:]
    seconds = (steps[-1].ended - steps[0].started) / len(steps)
    share = read / seconds / most.bytes_per_s
    found = f"{rows / seconds:,.0f} tok/s, {share:.0%} of bandwidth"
    yield Line(f"{name}: decode, {rows} rows", found, ">= 75 %" if held else "", share >= 0.75 if held else None)
    gaps = sorted(after.started - one.ended for one, after in pairwise(steps))
    yield Line(
        f"{name}: gap of steps, {rows} rows", f"p50 {gaps[len(gaps) // 2] * 1e6:.0f} us, most {gaps[-1] * 1e6:.0f} us"
    )
    yield told
    yield Line(f"{name}: allocations in {len(results)} steps, {rows} rows", str(asked), "0", asked == 0)


def _steps(runner: Runner, tables: list[tuple[int, ...]]) -> Iterator[StepResult]:
    """One ahead, over the same positions again and again, until there is enough of them to be looked at."""
    executor, began = runner.executor, time.monotonic()
    for index in count():
        if index >= STEPS and time.monotonic() - began >= LEAST_S:
            break
        at = CONTEXT + index % STEPS
        executor.submit(StepPlan(1000 + index, tuple(Row(s, at, (), table, True) for s, table in enumerate(tables))))
        if index:
            yield executor.collect()
    yield executor.collect()


def _asked(name: str, device: Device, runner: Runner, tables: list[tuple[int, ...]]) -> Line:
    """Calls of the allocator in all else that a node does: a prompt, a draw, log-probabilities, penalties, blocks."""
    before = device.allocations()
    sampling = Sampling(0.8, top_p=0.9, repetition=1.1, logprobs=5)
    prompt = tuple(range(CONTEXT))
    for _ in range(3):
        runner.step(Row(0, 0, prompt, tables[0], True, sampling, prompt))
        runner.executor.write_block(tables[1][0], runner.executor.read_block(tables[0][0]))
    asked = device.allocations() - before
    return Line(f"{name}: allocations beside decoding", str(asked), "0", asked == 0)
