#!/usr/bin/env python3
"""Three times what a server can do, for a minute: what it refuses and how, and what those whom it admits get.

First its peak: as many requests at a time as it runs (--concurrency), one after the other. Then such requests come at
random moments, --factor times as many a second, whatever becomes of the others.

.venv/bin/python scripts/bench/overload.py --base-url http://127.0.0.1:8101/v1 --concurrency 16 --out overload.json
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from load import Refused, Sample, arguments, ask, held_blocks, idle, milliseconds, prompt, report

PROMPT, OUT = 128, 32


@dataclass
class Outcome:
    """Of many requests."""

    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    unstructured: int = 0
    """Refusals that are not what OpenAI's clients understand."""
    broken: Counter[str] = field(default_factory=Counter)
    """Answers that began and did not end well, or connections that failed, by the kind of error."""

    @property
    def total(self) -> int:
        return len(self.samples) + self.refused.total() + self.broken.total()

    @property
    def failed_share(self) -> float:
        """5xx and what is broken; a structured 503 that says when to come back is a refusal, but 5xx all the same."""
        return (sum(n for status, n in self.refused.items() if status >= 500) + self.broken.total()) / max(
            1, self.total
        )

    @property
    def goodput(self) -> float:
        """Tokens a second of answers that came whole."""
        return sum(sample.completion_tokens for sample in self.samples) / self.seconds


class Load:
    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._args = args
        self._session = session
        self._rng = random.Random(args.seed)

    async def one(self, outcome: Outcome) -> None:
        messages = prompt(self._rng, PROMPT)
        try:
            outcome.samples.append(await ask(self._session, self._args.base_url, self._args.model, messages, OUT))
        except Refused as refused:
            outcome.refused[refused.status] += 1
            outcome.unstructured += not refused.structured
        except (RuntimeError, aiohttp.ClientError, OSError) as error:
            outcome.broken[type(error).__name__] += 1

    async def peak(self, seconds: float) -> Outcome:
        outcome, began = Outcome(), time.perf_counter()

        async def client() -> None:
            while time.perf_counter() - began < seconds:
                await self.one(outcome)

        await asyncio.gather(*(client() for _ in range(self._args.concurrency)))
        outcome.seconds = time.perf_counter() - began
        return outcome

    async def storm(self, rate: float, seconds: float) -> Outcome:
        """`rate` requests a second; its time ends with the last arrival's answer."""
        outcome, began, tasks = Outcome(), time.perf_counter(), set[asyncio.Task[None]]()
        at = began
        while at - began < seconds:
            at += self._rng.expovariate(rate)
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            task = asyncio.create_task(self.one(outcome))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        outcome.seconds = time.perf_counter() - began
        return outcome


def table(peak: Outcome, storm: Outcome) -> list[tuple[str, ...]]:
    first = (
        "",
        "requests",
        "admitted",
        "refused",
        "unstructured",
        "broken",
        "5xx share",
        "tokens/s",
        "first p50",
        "p99 ms",
    )
    return [first, _row("peak", peak), _row("overload", storm)]


def _row(name: str, found: Outcome) -> tuple[str, ...]:
    seconds: Sequence[float] = [sample.first_token for sample in found.samples] or [float("nan")]
    refused = " ".join(f"{status}:{count}" for status, count in sorted(found.refused.items())) or "0"
    broken = " ".join(f"{kind}:{count}" for kind, count in sorted(found.broken.items())) or "0"
    counts = (str(found.total), str(len(found.samples)), refused, str(found.unstructured), broken)
    return (
        name,
        *counts,
        f"{found.failed_share:.2%}",
        f"{found.goodput:.0f}",
        f"{milliseconds(seconds):.0f}",
        f"{milliseconds(seconds, 0.99):.0f}",
    )


async def measure(args: argparse.Namespace) -> tuple[Outcome, Outcome, dict[str, Any]]:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        load = Load(args, session)
        await load.peak(1.0)
        peak = await load.peak(args.seconds / 3)
        rate = args.factor * len(peak.samples) / peak.seconds
        print(
            f"peak {len(peak.samples) / peak.seconds:.2f} requests/s; now {rate:.2f} a second for {args.seconds:.0f} s"
        )
        storm = await load.storm(rate, args.seconds)
        return peak, storm, await idle(session, args.base_url)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    peak, storm, status = asyncio.run(measure(args))
    report(args.out, table(peak, storm), {"peak": peak.samples, "overload": storm.samples}, status=status)
    first = [milliseconds([sample.first_token for sample in found.samples] or [0.0], 0.99) for found in (peak, storm)]
    ratio = first[1] / max(first[0], 1e-9)
    print(f"\ngoodput {storm.goodput / peak.goodput:.1%} of peak; p99 first token {ratio:.2f} of peak's")
    if status:
        print(f"afterwards: {status['state']}, {held_blocks(status)} blocks held, {status['preemptions']} preemptions")


if __name__ == "__main__":
    main()
