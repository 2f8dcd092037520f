"""The oracle: a llama forward pass in float32 torch, paged KV and sampling as engine/step.py states them.

For tests only; simple before fast. Of the contract it lacks one thing: torch chooses kernels by shape, so rows agree
with one another to rounding and not bit for bit.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
import xxhash
from torch import Tensor

from engine.executor.base import Executor, Limits
from engine.executor.dequantise import dequantise
from engine.executor.philox import uniform
from engine.model.arch import LlamaConfig, llama_config
from engine.model.gguf import read
from engine.step import BLOCK_TOKENS, Finish, Row, RowResult, Sampling, StepPlan, StepResult


@dataclass(slots=True)
class _Slot:
    sampling: Sampling
    last: int | None = None
    """The token sampled last."""
    ended: bool = False
    logits: Tensor | None = None
    """[vocab]"""


class ReferenceExecutor(Executor):
    """Runs a plan inside `submit`; `collect` hands out the results in order."""

    def __init__(
        self, path: Path | str, *, slots: int, blocks: int, context: int | None = None, step_tokens: int = 2048
    ) -> None:
        """Raises GgufError for a file that is no llama model. `context` None: what the model was trained for."""
        gguf = read(path)
        self.config = llama_config(gguf)
        self._limits = Limits(slots, blocks, step_tokens, context or self.config.context, self.config.vocab)
        data = np.fromfile(path, np.uint8)
        self._numerics = f"torch-{torch.__version__}-float32-{xxhash.xxh3_64_hexdigest(data.data)}"
        weights = {name: torch.from_numpy(dequantise(data, tensor)) for name, tensor in gguf.tensors.items()}
        self._model = _Model(self.config, weights, blocks)
        self._slots: dict[int, _Slot] = {}
        self._results: deque[StepResult] = deque()

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def numerics(self) -> str:
        return self._numerics

    def submit(self, plan: StepPlan) -> None:
        if len(self._results) >= self.depth:
            raise RuntimeError(f"{self.depth} steps are submitted already; collect one first")
        self._check(plan)
        started = time.monotonic()
        for row in plan.rows:
            if row.opens is not None:
                self._slots[row.slot] = _Slot(row.opens)
        with torch.inference_mode():
            results = self._run([row for row in plan.rows if not self._slots[row.slot].ended])
        rows = tuple(results.get(row.slot, RowResult(row.slot)) for row in plan.rows)
        self._results.append(StepResult(plan.step, rows, started, time.monotonic()))

    def collect(self) -> StepResult:
        if not self._results:
            raise RuntimeError("no step is submitted")
        return self._results.popleft()

    def logits(self, slot: int) -> array[float]:
        state = self._slots.get(slot)
        if state is None or state.logits is None:
            raise ValueError(f"slot {slot} has sampled nothing yet")
        return array("f", state.logits.numpy().tobytes())

    def text_logits(self, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
        """The logits after every token of a text, [n, vocab]. Overwrites the pool's first blocks."""
        blocks = tuple(range(-(-len(tokens) // BLOCK_TOKENS)))
        with torch.inference_mode():
            logits: npt.NDArray[np.float32] = self._model.head(
                self._model.forward([(tuple(tokens), 0, blocks)])
            ).numpy()
        return logits

    def close(self) -> None:
        self._slots.clear()
        self._results.clear()

    def _run(self, rows: list[Row]) -> dict[int, RowResult]:
        if not rows:
            return {}
        hidden = self._model.forward([(self._tokens(row), row.start, row.blocks) for row in rows])
        ends = torch.tensor([row.count for row in rows]).cumsum(0) - 1
        sampled = [index for index, row in enumerate(rows) if row.sample]
        logits = self._model.head(hidden[ends[sampled]])
        results = {row.slot: RowResult(row.slot) for row in rows}
        for index, values in zip(sampled, logits, strict=True):
            row = rows[index]
            results[row.slot] = self._sampled(row, values)
        return results

    def _tokens(self, row: Row) -> tuple[int, ...]:
        last = self._slots[row.slot].last
        return row.tokens or ((last,) if last is not None else ())

    def _sampled(self, row: Row, logits: Tensor) -> RowResult:
        slot = self._slots[row.slot]
        slot.logits = logits.clone()
        if not bool(torch.isfinite(logits).all()):
            slot.ended = True
            return RowResult(row.slot, finish=Finish.ERROR)
        slot.last = sample(logits.numpy(), slot.sampling, row.start + row.count)
        slot.ended = slot.last in slot.sampling.stop_ids
        return RowResult(row.slot, (slot.last,), Finish.STOP if slot.ended else None)

    def _check(self, plan: StepPlan) -> None:
        limits = self._limits
        if sum(row.count for row in plan.rows) > limits.step_tokens:
            raise ValueError(f"step {plan.step}: more than {limits.step_tokens} tokens")
        if len({row.slot for row in plan.rows}) < len(plan.rows):
            raise ValueError(f"step {plan.step}: a slot has two rows")
        for row in plan.rows:
            if problem := self._problem(row):
                raise ValueError(f"step {plan.step}, slot {row.slot}: {problem}")
        written = [block for row in plan.rows for block in _written(row)]
        if len(set(written)) < len(written):
            raise ValueError(f"step {plan.step}: a block is written twice")

    def _problem(self, row: Row) -> str | None:
        limits, end = self._limits, row.start + row.count
        if not 0 <= row.slot < limits.slots:
            return f"there are {limits.slots} slots"
        if row.start < 0 or end > limits.context:
            return f"positions {row.start} to {end} of a context of {limits.context}"
        if len(row.blocks) * BLOCK_TOKENS < end:
            return f"{len(row.blocks)} blocks do not cover {end} positions"
        if not all(0 <= block < limits.blocks for block in row.blocks):
            return f"a block is outside the pool of {limits.blocks}"
        if not all(0 <= token < limits.vocab for token in row.tokens):
            return f"a token is outside the vocabulary of {limits.vocab}"
        slot = self._slots.get(row.slot)
        if row.opens is None and slot is None:
            return "the first row of a sequence must open its slot"
        if not row.tokens and (row.opens is not None or (slot is not None and slot.last is None and not slot.ended)):
            return "a decode row needs a token that was sampled before"
        return None


def sample(logits: npt.NDArray[np.float32], sampling: Sampling, position: int) -> int:
    """The token for `position` out of finite `logits` [vocab], by the order that Sampling documents, in float64."""
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    scaled = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")[: sampling.top_k or None]
    weights = np.exp(scaled[order] - scaled[order[0]])
    reached = np.cumsum(weights / weights.sum())
    kept = reached[: int(np.searchsorted(reached, sampling.top_p)) + 1]
    index = int(np.searchsorted(kept, uniform(sampling.seed, position) * kept[-1], side="right"))
    return int(order[min(index, len(kept) - 1)])


class _Model:
    def __init__(self, config: LlamaConfig, weights: dict[str, Tensor], blocks: int) -> None:
        self._config = config
        self._weights = weights
        shape = (config.layers, blocks * BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self._keys = torch.full(shape, math.nan)
        """Physical position = block * 16 + offset. NaN until written, so that reading too far shows."""
        self._values = torch.full(shape, math.nan)

    def forward(self, rows: list[tuple[tuple[int, ...], int, tuple[int, ...]]]) -> Tensor:
        """Rows of (tokens, start, blocks) -> hidden states [all tokens, hidden], in the order of the rows."""
        tokens = torch.tensor([token for ids, _, _ in rows for token in ids])
        positions = torch.cat([torch.arange(start, start + len(ids)) for ids, start, _ in rows])
        places = [_places(blocks, start + len(ids)) for ids, start, blocks in rows]
        hidden = self._weights["token_embd.weight"][tokens]
        for layer in range(self._config.layers):
            hidden = hidden + self._attention(layer, self._norm(hidden, f"blk.{layer}.attn_norm"), positions, places)
            hidden = hidden + self._feed_forward(layer, self._norm(hidden, f"blk.{layer}.ffn_norm"))
        return self._norm(hidden, "output_norm")

    def head(self, hidden: Tensor) -> Tensor:
        """[n, hidden] -> logits [n, vocab]"""
        return hidden @ self._weights.get("output.weight", self._weights["token_embd.weight"]).T

    def _attention(self, layer: int, hidden: Tensor, positions: Tensor, places: list[Tensor]) -> Tensor:
        """`places`: per row the physical positions of [0, end); `positions`: logical, of all rows' tokens."""
        config = self._config
        queries = self._rope(self._linear(hidden, f"blk.{layer}.attn_q", config.heads), positions)
        keys = self._rope(self._linear(hidden, f"blk.{layer}.attn_k", config.kv_heads), positions)
        values = self._linear(hidden, f"blk.{layer}.attn_v", config.kv_heads)
        outputs, at = [], 0
        for place in places:
            start = int(positions[at])
            row = slice(at, at + len(place) - start)
            self._keys[layer, place[start:]] = keys[row]
            self._values[layer, place[start:]] = values[row]
            outputs.append(_attend(queries[row], self._keys[layer, place], self._values[layer, place], positions[row]))
            at = row.stop
        return F.linear(torch.cat(outputs), self._weights[f"blk.{layer}.attn_output.weight"])

    def _feed_forward(self, layer: int, hidden: Tensor) -> Tensor:
        """SwiGLU (Shazeer, arXiv:2002.05202)."""
        gate, up, down = (self._weights[f"blk.{layer}.ffn_{part}.weight"] for part in ("gate", "up", "down"))
        return F.linear(F.silu(F.linear(hidden, gate)) * F.linear(hidden, up), down)

    def _linear(self, hidden: Tensor, name: str, heads: int) -> Tensor:
        """[n, hidden] -> [n, heads, head_dim]"""
        return F.linear(hidden, self._weights[f"{name}.weight"]).view(len(hidden), heads, self._config.head_dim)

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], self._weights[f"{name}.weight"], self._config.rms_eps)

    def _rope(self, vectors: Tensor, positions: Tensor) -> Tensor:
        """[n, heads, head_dim]; pair (2i, 2i + 1) turns by position * theta ** (-2i / head_dim) (arXiv:2104.09864)."""
        width = self._config.head_dim
        frequencies = self._config.rope_theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = (positions[:, None] * frequencies)[:, None, :]
        cos, sin = angles.cos().float(), angles.sin().float()
        even, odd = vectors[..., 0::2], vectors[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def _written(row: Row) -> tuple[int, ...]:
    """The blocks that hold the row's own positions."""
    return row.blocks[row.start // BLOCK_TOKENS : -(-(row.start + row.count) // BLOCK_TOKENS)]


def _places(blocks: tuple[int, ...], end: int) -> Tensor:
    """Physical positions of the logical [0, end)."""
    logical = torch.arange(end)
    return torch.tensor(blocks)[logical // BLOCK_TOKENS] * BLOCK_TOKENS + logical % BLOCK_TOKENS


def _attend(queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
    """Causal, grouped queries. [n, heads, d], [end, kv_heads, d] twice, [n] -> [n, heads * d]"""
    count, heads, width = queries.shape
    end, kv_heads, _ = keys.shape
    grouped = queries.view(count, kv_heads, heads // kv_heads, width)
    scores = torch.einsum("nkgd,ekd->nkge", grouped, keys) / math.sqrt(width)
    future = torch.arange(end) > positions[:, None]
    weights = scores.masked_fill(future[:, None, None, :], -math.inf).softmax(dim=-1)
    return torch.einsum("nkge,ekd->nkgd", weights, values).reshape(count, heads * width)
