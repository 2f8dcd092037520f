"""The oracle: a llama in torch (llama.py), with paged KV and sampling as engine/step.py states them.

For tests only; simple before fast. Of the contract it lacks one thing: torch chooses kernels by shape, so rows agree
with one another to rounding and not bit for bit.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor

from engine.executor.base import Executor, Limits
from engine.executor.llama import EXACT, Emulation, Llama
from engine.executor.plans import check, check_block, check_content, check_depth, result
from engine.executor.sampling import logprobs, sample
from engine.model.arch import llama_config
from engine.model.gguf import read
from engine.step import BLOCK_TOKENS, Finish, Row, RowResult, Sampling, StepPlan, StepResult

TEXT_CHUNK = 256
"""Tokens of a text that are run at once; scores take heads * TEXT_CHUNK * context values."""


@dataclass(slots=True)
class _Slot:
    sampling: Sampling
    history: list[int] = field(default_factory=list)
    """Where it penalises: the prompt and what was sampled."""
    last: int | None = None
    """The token sampled last."""
    ended: bool = False
    logits: Tensor | None = None
    """[vocab]"""


class ReferenceExecutor(Executor):
    """Runs a plan inside `collect`, when the masks of its constrained slots are there."""

    def __init__(
        self,
        path: Path | str,
        *,
        slots: int,
        blocks: int,
        context: int | None = None,
        step_tokens: int = 2048,
        emulate: Emulation = EXACT,
    ) -> None:
        """Raises GgufError for a file that is no llama model. `context` None: what the model was trained for."""
        gguf = read(path)
        self.config = llama_config(gguf)
        digest = xxhash.xxh3_64_hexdigest(gguf.path.read_bytes())
        super().__init__(
            Limits(slots, blocks, step_tokens, context or self.config.context, self.config.vocab),
            f"torch-{torch.__version__}-{emulate}-{digest}",
        )
        self._model = Llama(gguf, self.config, emulate, blocks=blocks)
        self._slots: dict[int, _Slot] = {}
        self._samples: dict[int, bool] = {}
        """Whether a plan that was submitted samples in a slot, of those that a plan opens."""
        self._plans: deque[StepPlan] = deque()
        self._masks: dict[tuple[int, int], bytes | None] = {}

    def submit(self, plan: StepPlan) -> None:
        check_depth(len(self._plans), self.depth)
        check(plan, self._limits, self._samples, lambda slot: self._samples[slot])
        for row in plan.rows:
            opened = row.opens is not None
            self._samples[row.slot] = row.sample or (not opened and self._samples[row.slot])
        self._plans.append(plan)

    def allow(self, slot: int, step: int, mask: bytes | None) -> None:
        self._masks[slot, step] = mask

    def collect(self) -> StepResult:
        if not self._plans:
            raise RuntimeError("no step is submitted")
        plan = self._plans.popleft()
        for row in plan.rows:
            if row.opens is not None:
                self._slots[row.slot] = _Slot(row.opens, list(row.history))
        started = time.monotonic()
        with torch.inference_mode():
            found = self._run(plan.step, [row for row in plan.rows if not self._slots[row.slot].ended])
        for row in plan.rows:
            self._masks.pop((row.slot, plan.step), None)
        return result(plan, found, started, time.monotonic())

    def logits(self, slot: int) -> array[float]:
        state = self._slots.get(slot)
        if state is None or state.logits is None:
            raise ValueError(f"slot {slot} has sampled nothing yet")
        return array("f", state.logits.numpy().tobytes())

    def text_logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after every token of a text, [n, vocab]. Overwrites the pool's first blocks."""
        blocks = tuple(range(-(-len(tokens) // BLOCK_TOKENS)))
        parts = range(0, len(tokens), TEXT_CHUNK)
        return np.concatenate([self.logits_of(tokens[at : at + TEXT_CHUNK], at, blocks) for at in parts])

    def logits_of(self, tokens: Sequence[int], start: int, blocks: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """The logits after every one of `tokens`, [n, vocab], at positions from `start` on of the text in `blocks`."""
        with torch.inference_mode():
            logits: npt.NDArray[np.float32] = self._model.head(
                self._model.forward([(tuple(tokens), start, blocks)])
            ).numpy()
        return logits

    @property
    def block_bytes(self) -> int:
        return self._model.block_bytes

    def read_block(self, block: int) -> bytes:
        check_block(block, self._limits)
        return self._model.read_block(block)

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        check_block(block, self._limits)
        check_content(content, self.block_bytes)
        self._model.write_block(block, content)

    def release(self) -> None:
        if self._plans:
            raise RuntimeError("memory can be released only while no plan is submitted")
        self._model.forget()
        for slot in self._slots.values():
            slot.logits = None

    def close(self) -> None:
        self._slots.clear()
        self._samples.clear()
        self._plans.clear()
        self._masks.clear()

    def _run(self, step: int, rows: list[Row]) -> dict[int, RowResult]:
        if not rows:
            return {}
        hidden = self._model.forward([(self._tokens(row), row.start, row.blocks) for row in rows])
        ends = torch.tensor([row.count for row in rows]).cumsum(0) - 1
        sampled = [index for index, row in enumerate(rows) if row.sample]
        logits = self._model.head(hidden[ends[sampled]])
        results = {row.slot: RowResult(row.slot) for row in rows}
        for index, values in zip(sampled, logits, strict=True):
            row = rows[index]
            results[row.slot] = self._sampled(step, row, values)
        return results

    def _tokens(self, row: Row) -> tuple[int, ...]:
        last = self._slots[row.slot].last
        return row.tokens or ((last,) if last is not None else ())

    def _sampled(self, step: int, row: Row, logits: Tensor) -> RowResult:
        slot = self._slots[row.slot]
        slot.logits = logits.clone()
        if not bool(torch.isfinite(logits).all()):
            slot.ended = True
            return RowResult(row.slot, finish=Finish.ERROR)
        sampling = slot.sampling
        mask = self._masks[row.slot, step] if sampling.constrained else None
        slot.last = sample(logits.numpy(), sampling, row.start + row.count, slot.history, mask)
        slot.history.append(slot.last)
        slot.ended = slot.last in sampling.stop_ids
        told = () if sampling.logprobs is None else (logprobs(logits.numpy(), slot.last, sampling.logprobs),)
        return RowResult(row.slot, (slot.last,), Finish.STOP if slot.ended else None, told)
