"""How fast is it, beside what the device can do? Ceilings are measured on the device at hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch

from engine.executor.gpu.device import Device
from engine.executor.gpu.matrix import Matrix
from engine.gpu_check.correct import Runner, running
from engine.gpu_check.table import Line
from engine.model.arch import LlamaConfig
from engine.model.gpu_layout import GpuSizes, kv_block_bytes
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan, StepResult

PREFILL, CONTEXT, STEPS = 2048, 512, 48
ROWS = (1, 8, 64)


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
    name: str, config: LlamaConfig, device: Device, dtype: str, bits: int, most: Callable[[], Ceiling], *, held: bool
) -> Callable[[], Iterator[Line]]:
    """held: the shares that are wanted of an 8B are asked of it."""

    def run() -> Iterator[Line]:
        blocks = -(-(CONTEXT + STEPS + 16) // BLOCK_TOKENS)
        sizes = GpuSizes(PREFILL, ROWS[-1], ROWS[-1] * blocks + PREFILL // BLOCK_TOKENS, 4096, dtype)
        ceilings, began = most(), time.monotonic()
        with running(config, device, dtype, bits, sizes) as runner:
            yield Line(f"{name}: start to the first step's end", f"{time.monotonic() - began:.1f} s")
            yield _prefill(name, config, runner, ceilings, held)
            weights = sum(m.nbytes for m in _read(runner))
            token = kv_block_bytes(config, sizes) // BLOCK_TOKENS
            for rows in ROWS:
                yield from _decode(
                    name, runner, rows, blocks, weights + rows * CONTEXT * token, ceilings, held and rows == 1
                )

    return run


def _read(runner: Runner) -> list[Matrix]:
    """Matrices that a step reads whole."""
    weights = runner.executor.weights
    layers = [m for la in weights.layers for m in (la.q, la.k, la.v, la.output, la.gate, la.up, la.down)]
    return [*layers, weights.head]


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


def _decode(name: str, runner: Runner, rows: int, blocks: int, read: int, most: Ceiling, held: bool) -> Iterator[Line]:
    tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(rows)]
    for slot in range(rows):
        runner.step(Row(slot, 0, tuple(range(CONTEXT)), tables[slot], True, Sampling(0.0)))
    executor, results = runner.executor, list[StepResult]()
    before = executor.device.allocations()
    for index in range(STEPS):
        plan = StepPlan(1000 + index, tuple(Row(s, CONTEXT + index, (), tables[s], True) for s in range(rows)))
        executor.submit(plan)
        if index:
            results.append(executor.collect())
    results.append(executor.collect())
    asked = executor.device.allocations() - before
    steps = results[8:]
    seconds = (steps[-1].ended - steps[0].started) / len(steps)
    share = read / seconds / most.bytes_per_s
    found = f"{rows / seconds:,.0f} tok/s, {share:.0%} of bandwidth"
    yield Line(f"{name}: decode, {rows} rows", found, ">= 75 %" if held else "", share >= 0.75 if held else None)
    gaps = sorted(after.started - one.ended for one, after in pairwise(steps))
    yield Line(
        f"{name}: gap of steps, {rows} rows", f"p50 {gaps[len(gaps) // 2] * 1e6:.0f} us, most {gaps[-1] * 1e6:.0f} us"
    )
    yield Line(f"{name}: allocations in {STEPS} steps, {rows} rows", str(asked), "0", asked == 0)
