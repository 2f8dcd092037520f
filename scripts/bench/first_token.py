#!/usr/bin/env python3
"""First token and tokens per second: through the proxy, and from its nearest node directly, alternately.

export EDGEPROXY_NODE_TOKEN=any-secret              # in both terminals: a launched node answers nobody else
./scripts/serve                                     # in another terminal
.venv/bin/python scripts/bench/first_token.py --out first_token.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
from pathlib import Path

try:
    import aiohttp
except ModuleNotFoundError:
    raise SystemExit("aiohttp is missing: run ./scripts/install --dev, and start this with .venv/bin/python") from None

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


def terms(timings: list[dict[str, float]]) -> list[tuple[str, ...]]:
    """`timings`: of each answer, in milliseconds. In the header's order; a term that an answer lacks is 0 there."""
    rows: list[tuple[str, ...]] = [("term", "p50 ms", "p99 ms", "most")]
    for name in dict.fromkeys(name for timing in timings for name in timing):
        found = [timing.get(name, 0.0) / 1e3 for timing in timings]
        rows.append((name, *(f"{milliseconds(found, share):.2f}" for share in (0.5, 0.99, 1.0))))
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
    print(f"\nproxy adds {share:.2f} ms to the median first token; its own ledger (Server-Timing):\n")
    report(None, terms([sample.server_timing for sample in samples["proxy"]]), {})


if __name__ == "__main__":
    main()
