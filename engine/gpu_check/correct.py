"""Are the numbers right? Logits against torch, bits against themselves, samples against the numpy model."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import torch

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import Device
from engine.executor.sampling import logprobs, sample
from engine.gpu_check.models import blank, fill, opened
from engine.gpu_check.oracle import logits
from engine.gpu_check.runner import Runner
from engine.gpu_check.table import Check, Line
from engine.model.arch import LlamaConfig
from engine.model.gpu_layout import PART, GpuSizes
from engine.step import BLOCK_TOKENS, Row, Sampling

TOLERANCE = {"bf16": 0.1, "f16": 0.01, "f32": 1e-4}
"""Of the largest difference of two logits, as a share of the logits' own deviation. Rounding alone, as torch has it on
a CPU, makes 0.03 in bf16 and 0.003 in f16, and of some models more: logic is held to float32's."""
FP8_TOLERANCE = 0.25
"""The same where keys and values are of 8 bits: what falls on another one's side of an edge is off by a sixteenth."""
SAMPLED = Sampling(0.8, top_p=0.95, top_k=200, seed=12345678901234567)
ADJUSTED = Sampling(
    0.8, min_p=0.001, seed=5, stop_ids=(3,), repetition=1.3, frequency=0.4, presence=0.2, bias=((5, 3.0), (11, -50.0)),
    min_tokens=2, constrained=True, logprobs=5,
)  # fmt: skip
"""All that happens to logits before they are sampled from."""
LOGPROBS_OFF = 1e-5


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
            fill(executor)
            device.settle()
            if device.torch_device.type == "cuda":
                torch.cuda.synchronize()  # the weights were made on another stream
            yield Started(
                executor, runner, (("opened", made - began), ("first step", stepped - made), *executor.phases())
            )
        finally:
            executor.close()


def check(
    name: str,
    config: LlamaConfig,
    device: Device,
    dtype: str,
    bits: int,
    length: int,
    kv: str = "16",
    *,
    part: int = PART,
) -> Check:
    """length: tokens of the prompt, 24 at least. part: positions of a part of attention; with several they are
    merged."""

    def run() -> Iterator[Line]:
        blocks = -(-(length + 8) // BLOCK_TOKENS)
        sizes = GpuSizes(length + 32, 4, 4 * blocks, blocks * BLOCK_TOKENS, dtype, kv, part)
        with running(config, device, dtype, bits, sizes) as (executor, runner, _):
            prompt = tuple(int(t) for t in np.random.default_rng(1).integers(0, config.vocab, length))
            tables = [tuple(range(i * blocks, (i + 1) * blocks)) for i in range(4)]
            first = runner.step(Row(0, 0, prompt, tables[0], True, SAMPLED))[0].tokens
            found = runner.logits(0)
            expected = logits(executor, config, prompt, fp8=kv == "fp8").numpy()
            off = float(np.abs(found - expected).max() / expected.std())
            limit = FP8_TOLERANCE if kv == "fp8" else TOLERANCE[dtype]
            yield Line(f"{name}: logits against torch", f"{off:.2e} of their deviation", f"<= {limit}", off <= limit)
            drawn = sample(found, SAMPLED, length)
            yield Line(f"{name}: the draw", f"{first[0]}", f"{drawn}", first == (drawn,))
            same = _bits(runner, prompt, tables, first, found)
            yield Line(f"{name}: alone, beside, chunked, hit", "same bits" if same else "other bits", "same bits", same)
            yield _adjusted(name, runner, prompt, tables[1])
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


def _adjusted(name: str, runner: Runner, prompt: tuple[int, ...], table: tuple[int, ...]) -> Line:
    """Two tokens under a mask, bias, penalties and a least length, and what is told of them."""
    vocab = runner.executor.limits.vocab
    masks = np.random.default_rng(2).integers(0, 1 << 32, (2, -(-vocab // 32)), np.uint32)
    sampling = replace(ADJUSTED, first=len(prompt))
    history, good = list(prompt), True
    for mask in masks:
        at = len(history)
        row = Row(1, 0, prompt, table, True, sampling, prompt) if at == len(prompt) else Row(1, at - 1, (), table, True)
        ((token,), told) = runner.constrained(row, mask.tobytes())
        raw = runner.logits(1)
        wanted = logprobs(raw, token, 5)
        good &= token == sample(raw, sampling, at, history, mask.tobytes())
        good &= [one for one, _ in told.top] == [one for one, _ in wanted.top]
        off = np.abs(
            np.subtract([told.sampled, *(v for _, v in told.top)], [wanted.sampled, *(v for _, v in wanted.top)])
        )
        good &= bool(off.max() <= LOGPROBS_OFF)
        history.append(token)
    return Line(f"{name}: mask, penalties, logprobs", "as numpy's" if good else "others", "as numpy's", good)


def _moved(runner: Runner, prompt: tuple[int, ...], tables: list[tuple[int, ...]], alone: object) -> bool:
    """The blocks of the prompt's beginning, as another sequence's."""
    reused = (len(prompt) - 1) // BLOCK_TOKENS
    for source, target in zip(tables[0][:reused], tables[1], strict=False):
        runner.executor.write_block(target, runner.executor.read_block(source))
    runner.step(Row(1, reused * BLOCK_TOKENS, prompt[reused * BLOCK_TOKENS :], tables[1], True, SAMPLED))
    return np.array_equal(runner.logits(1), alone)  # type: ignore[arg-type]
