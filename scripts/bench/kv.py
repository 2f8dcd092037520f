#!/usr/bin/env python3
"""What reuse and scheduling cost the engine's thread: no model, processor time of this thread.

The best tenth of many runs, since others on the machine only ever add; an empty loop beside them tells how fast the
machine is at the moment (15 ns an iteration where it is ours alone).

.venv/bin/python scripts/bench/kv.py --trace mooncake-conversation.jsonl --out kv.json

A trace has a request a line with `hash_ids`, one for each block of its prompt (Mooncake, arXiv:2407.00079).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from statistics import median

from engine.executor.base import Limits
from engine.gauges import Gauges
from engine.kv import BlockPool, Link, extend
from engine.scheduler import Scheduler
from engine.sequence import GenerationRequest
from engine.step import RowResult, Sampling, StepPlan, StepResult

PROMPT_BLOCKS = 112
"""A prompt of 1,792 tokens."""


def microseconds(work: Callable[[], None], per: int, repeats: int) -> float:
    """Of `repeats` runs, each of `per` units."""
    found = []
    for _ in range(repeats):
        begun = time.thread_time_ns()
        work()
        found.append((time.thread_time_ns() - begun) / 1000 / per)
    return best_tenth(found)


def best_tenth(values: list[float]) -> float:
    return sorted(values)[len(values) // 10]


def empty_loop() -> None:
    for _ in range(100_000):
        pass


def prompts(rng: random.Random, count: int) -> list[array[int]]:
    return [array("I", (rng.randrange(49152) for _ in range(PROMPT_BLOCKS * 16))) for _ in range(count)]


def reuse(repeats: int) -> dict[str, float]:
    rng = random.Random(1)
    tokens = prompts(rng, 8)
    pool = BlockPool(PROMPT_BLOCKS * len(tokens))
    salt = bytes(32)

    def links(prompt: array[int]) -> list[Link]:
        found: list[Link] = []
        extend(found, prompt, salt)
        return found

    def insert() -> None:
        for prompt in tokens:
            blocks = pool.allocate(PROMPT_BLOCKS)  # evicts as many of the run before
            before: int | bytes = salt
            for block, link in zip(blocks, links(prompt), strict=True):
                pool.register(block, before, link)
                before = block
            pool.release(blocks)

    def look_up() -> None:
        for prompt in tokens:
            assert len(pool.match(links(prompt), salt)) == PROMPT_BLOCKS

    fresh = iter(range(1, 1 << 30))

    def insert_new() -> None:
        for prompt in tokens:
            prompt[0] = next(fresh)
        insert()

    per = PROMPT_BLOCKS * len(tokens)
    return {
        "insert us per block (key, eviction, registration, release)": microseconds(insert_new, per, repeats),
        "look-up us per block (key, comparison)": microseconds(look_up, per, repeats),
    }


def step(plan: StepPlan) -> StepResult:
    return StepResult(plan.step, tuple(RowResult(row.slot, (7,) if row.sample else ()) for row in plan.rows), 0.0, 0.01)


def scheduling(rows: int, steps: int) -> dict[str, float]:
    """Decode steps of `rows` sequences of 500 tokens; one in 16 steps a row takes and registers a block."""
    scheduler = Scheduler(Limits(rows, 1 << 14, 1024, 4096, 49152), Gauges(), queue=0)
    rng = random.Random(2)
    for number in range(rows):
        prompt = tuple(rng.randrange(49152) for _ in range(500 + number))
        scheduler.add(GenerationRequest(f"{number}", prompt, Sampling(), 2048), 0.0)
    found = []
    while len(found) < steps:
        begun = time.thread_time_ns()
        plan = scheduler.plan()
        planned = time.thread_time_ns()
        assert plan is not None
        result = step(plan)
        completed = time.thread_time_ns()
        scheduler.complete(result, 0.0)
        scheduler.load()
        spent = planned - begun + time.thread_time_ns() - completed
        if len(plan.rows) == rows and not any(row.tokens for row in plan.rows):
            found.append(spent / 1000)
    return {f"step us, {rows} rows": best_tenth(found), f"step us, {rows} rows, median": median(found)}


def replay(requests: list[list[int]], blocks: int) -> int:
    """Blocks found by requests that come one after the other."""
    pool, found = BlockPool(blocks), 0
    for hashes in requests:
        links = [(value.to_bytes(8), b"") for value in hashes]
        hits = pool.match(links, b"")
        pool.retain(hits)
        table = (*hits, *pool.allocate(len(links) - len(hits)))
        for index in range(len(hits), len(links)):
            pool.register(table[index], table[index - 1] if index else b"", links[index])
        pool.release(table)
        found += len(hits)
    pool.check([])
    return found


def reuse_of(trace: Path) -> dict[str, float]:
    """What pools of a part of the trace's unique blocks find of all that can be found."""
    requests = [json.loads(line)["hash_ids"] for line in trace.read_text().splitlines()]
    unique = len({value for hashes in requests for value in hashes})
    most = replay(requests, unique)
    shares = (0.25, 0.1, 0.05)
    return {
        f"trace, pool of {share:.0%}: found of all": replay(requests, int(unique * share)) / most for share in shares
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    loop = {"empty loop ns": 1000 * microseconds(empty_loop, 100_000, args.repeats)}
    results = {**loop, **reuse(args.repeats), **scheduling(1, args.steps), **scheduling(16, args.steps)}
    if args.trace:
        results |= reuse_of(args.trace)
    for name, value in results.items():
        print(f"{name:62} {value:8.2f}")
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
