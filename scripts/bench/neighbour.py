#!/usr/bin/env python3
"""Decode beside a busy neighbour: a process that takes half a core, in turns of a few milliseconds.

    .venv/bin/python scripts/bench/neighbour.py [--rounds 5] [--threads 2] [--busy 0.5] [--arithmetic int16]

Alone and beside it in turn, in process. A team of threads whose members wait for one another at every barrier loses
more than the half core that is gone if a member's turn comes late; what is fair is 1 - busy / cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steps import MODEL, Bench

from engine.executor.native import ACTIVATION_BITS, PACKER
from engine.model.arch import llama_config
from engine.model.gguf import read
from engine.model.pack import pack
from engine.model.source import resolve

TURN_S = 0.01
_NEIGHBOUR = """
import sys, time
busy, turn = map(float, sys.argv[1:])
print(flush=True)
while True:
    end = time.monotonic() + busy * turn
    while time.monotonic() < end:
        pass
    time.sleep((1 - busy) * turn)
"""


@contextmanager
def neighbour(busy: float) -> Iterator[None]:
    """A process that computes for `busy` of its time."""
    arguments = [sys.executable, "-c", _NEIGHBOUR, str(busy), str(TURN_S)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--busy", type=float, default=0.5, help="of a core")
    parser.add_argument("--arithmetic", choices=["int16", "int8"], default="int16")
    args = parser.parse_args()
    gguf = read(resolve(args.model))
    streams = (1, 8)
    alone: dict[int, list[float]] = {count: [] for count in streams}
    beside: dict[int, list[float]] = {count: [] for count in streams}
    with tempfile.TemporaryDirectory() as folder:
        image = pack(gguf.path, Path(folder) / "image", PACKER)
        bench = Bench(image, llama_config(gguf), args.threads, "", ACTIVATION_BITS[args.arithmetic])
        for _ in range(args.rounds):
            for count in streams:
                alone[count].append(bench.decode(count, 40, 64)[0])
                with neighbour(args.busy):
                    beside[count].append(bench.decode(count, 40, 64)[0])
        bench.executor.close()
    fair = 1 - args.busy / len(os.sched_getaffinity(0))
    print(f"| streams | alone, tokens/s | beside {args.busy:g} of a core | share (fair: {fair:.2f}) |")
    for count in streams:
        before, after = statistics.median(alone[count]), statistics.median(beside[count])
        print(f"| {count} | {before:.0f} | {after:.0f} | {after / before:.2f} |")


if __name__ == "__main__":
    main()
