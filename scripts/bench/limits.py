#!/usr/bin/env python3
"""What the machine can do, and how much of it the kernels use.

    .venv/bin/python scripts/bench/limits.py [--threads 2] [--rounds 5] [--arithmetic int16]

Reads the weights of a decoded token (GB/s) and multiplies those of a prompt (GOP/s, of 8-bit products: int16 takes two
for each weight) against what bare loops in limits.cpp reach at the same time. `near` and `far` say how long a cache
line takes from core to core: virtual machines are moved between the two, and figures of one do not compare with the
other.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NEAR_NS: Final = 100.0
"""From core to core, one way: below it both share a cache."""
MIB: Final = 92
"""Of weights that a token reads."""
SOURCE: Final = Path(__file__).with_suffix(".cpp")


@dataclass(frozen=True, slots=True)
class Limits:
    read_gb_s: float
    dot_gop_s: float
    """0 where the machine has no such instruction."""
    line_ns: float
    wake_us_p50: float
    """Of a thread that sleeps, by a bare futex."""
    wake_us_p99: float

    @property
    def state(self) -> str:
        return f"{'near' if self.line_ns < NEAR_NS else 'far'} ({self.line_ns:.0f} ns from core to core)"


@contextmanager
def probe(threads: int) -> Iterator[Probe]:
    """Raises CalledProcessError where there is no compiler that builds it."""
    compiler = shutil.which("c++") or shutil.which("g++") or "clang++"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "limits"
        command = [compiler, "-std=c++20", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(binary)]
        subprocess.run(command, check=True)
        yield Probe(binary, threads)


@dataclass(frozen=True, slots=True)
class Probe:
    binary: Path
    threads: int

    def measure(self) -> Limits:
        command = [str(self.binary), str(self.threads), str(MIB)]
        return Limits(*map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))


def main() -> None:
    from steps import MODEL, Bench

    from engine.executor.native import ACTIVATION_BITS, PACKER
    from engine.model.arch import llama_config
    from engine.model.gguf import read
    from engine.model.pack import pack
    from engine.model.source import resolve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arithmetic", choices=("int16", "int8"), default="int16")
    args = parser.parse_args()
    gguf = read(resolve(MODEL))
    bits = ACTIVATION_BITS[args.arithmetic]
    cases = {"decode, 1 stream": 1, "8 streams": 8, "16 streams": 16, "prefill 512": 512}
    found: dict[str, list[float]] = {case: [] for case in cases}
    limits = []
    with tempfile.TemporaryDirectory() as folder, probe(args.threads) as machine:
        image, config = pack(gguf.path, Path(folder) / "image", PACKER), llama_config(gguf)
        bench = Bench(image, config, args.threads, "", bits)
        for _ in range(args.rounds):
            limits.append(machine.measure())
            for case, rows in cases.items():
                rate = bench.prefill(rows) if rows > 16 else bench.decode(rows, 62, 24)[0]
                found[case].append(rate / rows if rows <= 16 else rate)
        bench.executor.close()
    weights = image.sections["weights"].nbytes / 1e9
    head = config.hidden * config.vocab
    heads = 2 * config.head_dim * (config.heads + config.kv_heads)
    layers = config.layers * config.hidden * (heads + 3 * config.ffn)
    gb_s = statistics.median(limit.read_gb_s for limit in limits)
    gop_s = statistics.median(limit.dot_gop_s for limit in limits)
    print(f"machine: {', '.join(sorted({limit.state.partition(' ')[0] for limit in limits}))}; {limits[-1].state}")
    wakes = [statistics.median(of) for of in zip(*((o.wake_us_p50, o.wake_us_p99) for o in limits), strict=True)]
    print(f"limits: reading {gb_s:.1f} GB/s, products of bytes {gop_s:.0f} GOP/s")
    print(f"a sleeping thread is awake after {wakes[0]:.0f} us (p99 {wakes[1]:.0f})\n")
    print("| | tokens/s | GB/s of weights | GOP/s | of the limit |\n|---|---|---|---|---|")
    for case, rows in cases.items():
        rate = statistics.median(found[case])  # steps a second, and of prefill tokens
        tokens = rate * rows if rows <= 16 else rate
        products = 2 * (bits / 8) * tokens * (layers + (head if rows <= 16 else 0)) / 1e9
        read_rate = rate * weights if rows <= 16 else 0.0
        share = max(read_rate / gb_s, products / gop_s if gop_s else 0.0)
        print(f"| {case} | {tokens:.0f} | {read_rate:.1f} | {products:.0f} | {share:.2f} |")


if __name__ == "__main__":
    main()
