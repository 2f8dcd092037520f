"""Are the numbers right? Logits against torch, bits against themselves, samples against the numpy model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import Device
from engine.executor.sampling import sample
from engine.gpu_check.models import blank, opened, randomise
from engine.gpu_check.oracle import logits
from engine.gpu_check.runner import Runner
from engine.gpu_check.table import Check, Line
from engine.model.arch import LlamaConfig
from engine.model.gpu_layout import GpuSizes
from engine.step import BLOCK_TOKENS, Row, Sampling

TOLERANCE = {"bf16": 0.05, "f16": 0.01, "f32": 1e-4}
"""Of the largest difference of two logits, as a share of the logits' own deviation."""
SAMPLED = Sampling(0.8, top_p=0.95, top_k=200, seed=12345678901234567)


class Started(NamedTuple):
    executor: CudaExecutor
    runner: Runner
    """Of it."""
    phases: tuple[tuple[str, float], ...]
    """Seconds, from nothing to the first step's end; the executor's own are within the first."""


@contextmanager
def running(
    config: LlamaConfig,
    device: Device,
    dtype: str,
    bits: int,
    sizes: GpuSizes,
    during: AbstractContextManager[None] | None = None,
) -> Iterator[Started]:
    """An executor of random weights that has run a step. during: around its start."""
    with TemporaryDirectory() as folder:
        image = blank(config, Path(folder), dtype, bits)
        with during or nullcontext():
            began = time.monotonic()
            executor = opened(image, device, sizes)
            made = time.monotonic()
            try:
                runner = Runner(executor)
                runner.step(Row(0, 0, (0,), (0,), True, Sampling(0.0)))
            except BaseException:
                executor.close()
                raise
            stepped = time.monotonic()
        try:
            randomise(executor)
            device.settle()
            if device.torch_device.type == "cuda":
                torch.cuda.synchronize()  # the weights were made on another stream
            yield Started(
                executor, runner, (("opened", made - began), ("first step", stepped - made), *executor.phases())
            )
        finally:
            executor.close()


def check(name: str, config: LlamaConfig, device: Device, dtype: str, bits: int, length: int, kv: str = "16") -> Check:
    """length: tokens of the prompt, 24 at least."""

    def run() -> Iterator[Line]:
        blocks = -(-(length + 8) // BLOCK_TOKENS)
        sizes = GpuSizes(length + 32, 4, 4 * blocks, blocks * BLOCK_TOKENS, dtype, kv)
        with running(config, device, dtype, bits, sizes) as (executor, runner, _):
            prompt = tuple(int(t) for t in np.random.default_rng(1).integers(0, config.vocab, length))
            tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(4)]
            first = runner.step(Row(0, 0, prompt, tables[0], True, SAMPLED))[0].tokens
            found = runner.logits(0)
            if kv == "16":
                expected = logits(executor, config, prompt).numpy()
                off = float(np.abs(found - expected).max() / expected.std())
                limit = TOLERANCE[dtype]
                yield Line(
                    f"{name}: logits against torch", f"{off:.2e} of their deviation", f"<= {limit}", off <= limit
                )
            drawn = sample(found, SAMPLED, length)
            yield Line(f"{name}: the draw", f"{first[0]}", f"{drawn}", first == (drawn,))
            same = _bits(runner, prompt, tables, first, found)
            yield Line(f"{name}: alone, beside, chunked, hit", "same bits" if same else "other bits", "same bits", same)
            moved = _moved(runner, prompt, tables, found)
            yield Line(f"{name}: blocks read and put back", "same bits" if moved else "other bits", "same bits", moved)

    return run


def _bits(
    runner: Runner, prompt: tuple[int, ...], tables: list[tuple[int, ...]], first: tuple[int, ...], alone: object
) -> bool:
    """A sequence in chunks beside another one that decodes, then one that reuses its first blocks."""
    cut, reused = len(prompt) // 2 - 1, (len(prompt) - 1) // BLOCK_TOKENS
    runner.step(
        Row(1, 0, prompt[:5], tables[1], True, Sampling(0.0)), Row(2, 0, prompt[:cut], tables[2], False, SAMPLED)
    )
    chunked = runner.step(Row(1, 5, (), tables[1], True), Row(2, cut, prompt[cut:], tables[2], True))
    table = (*tables[2][:reused], *tables[3][reused:])
    hit = runner.step(Row(3, reused * BLOCK_TOKENS, prompt[reused * BLOCK_TOKENS :], table, True, SAMPLED))
    rows = all(np.array_equal(runner.logits(slot), alone) for slot in (2, 3))  # type: ignore[arg-type]
    decoded = runner.step(
        *(Row(slot, len(prompt), (), t, True) for slot, t in ((0, tables[0]), (2, tables[2]), (3, table)))
    )
    after = len({decoded[slot].tokens for slot in (0, 2, 3)}) == 1
    return rows and after and chunked[2].tokens == hit[3].tokens == first


def _moved(runner: Runner, prompt: tuple[int, ...], tables: list[tuple[int, ...]], alone: object) -> bool:
    """The blocks of the prompt's beginning, as another sequence's."""
    reused = (len(prompt) - 1) // BLOCK_TOKENS
    for source, target in zip(tables[0][:reused], tables[1], strict=False):
        runner.executor.write_block(target, runner.executor.read_block(source))
    runner.step(Row(1, reused * BLOCK_TOKENS, prompt[reused * BLOCK_TOKENS :], tables[1], True, SAMPLED))
    return np.array_equal(runner.logits(1), alone)  # type: ignore[arg-type]
