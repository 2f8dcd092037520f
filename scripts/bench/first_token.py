#!/usr/bin/env python3
"""First token and tokens per second: through the proxy, and from its nearest node directly, alternately.

./scripts/serve                                     # in another terminal
.venv/bin/python scripts/bench/first_token.py --out first_token.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

import aiohttp
from load import Sample, ask, median, milliseconds, prompt, report, tokens_per_second


async def measure(args: argparse.Namespace) -> dict[str, list[Sample]]:
    rng = random.Random(args.seed)
    samples: dict[str, list[Sample]] = {"node": [], "proxy": []}
    urls = {"node": args.node, "proxy": args.proxy}
    async with aiohttp.ClientSession() as session:
        for url in urls.values():
            await ask(session, url, args.model, prompt(rng, args.prompt_tokens), 8)
        for round_number in range(args.rounds):
            order = list(urls.items())[:: -1 if round_number % 2 else 1]
            for name, url in order:
                sample = await ask(session, url, args.model, prompt(rng, args.prompt_tokens), args.max_tokens)
                samples[name].append(sample)
    return samples


def table(samples: dict[str, list[Sample]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("", "first token p50 ms", "p99 ms", "tokens/s", "gap p50 ms", "gap p99 ms")]
    for name, found in samples.items():
        gaps = [gap for sample in found for gap in sample.gaps]
        first = [sample.first_token for sample in found]
        rows.append(
            (
                name,
                f"{milliseconds(first):.2f}",
                f"{milliseconds(first, 0.99):.2f}",
                f"{median([tokens_per_second(sample) for sample in found]):.1f}",
                f"{milliseconds(gaps):.2f}",
                f"{milliseconds(gaps, 0.99):.2f}",
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxy", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--node", default="http://127.0.0.1:8101/v1")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    samples = asyncio.run(measure(args))
    report(args.out, table(samples), samples)
    share = milliseconds([s.first_token for s in samples["proxy"]]) - milliseconds(
        [s.first_token for s in samples["node"]]
    )
    terms = {name for s in samples["proxy"] for name in s.server_timing}
    print(f"\nproxy adds {share:.2f} ms to the median first token; medians of its own ledger (Server-Timing):")
    for name in sorted(terms):
        print(f"  {name:8} {median([s.server_timing.get(name, 0.0) for s in samples['proxy']]):8.2f} ms")


if __name__ == "__main__":
    main()
