#!/usr/bin/env python3
"""Chats that share a long system prompt, against any OpenAI-compatible server: memory per request, latency, its spread.

Start the server anew for each run: the first requests after a start are compared with the tenth.

.venv/bin/python scripts/bench/shared_prefix.py --base-url http://127.0.0.1:8101/v1 --out ours.json
.venv/bin/python scripts/bench/shared_prefix.py --base-url http://127.0.0.1:8000/v1 --model NAME --out vllm.json

KV memory comes from a native node's status or from vLLM's metrics, in tokens' worth of blocks at the fullest moment.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from contextlib import suppress
from typing import Any

import aiohttp
from load import WORDS, Sample, arguments, ask, held_blocks, idle, median, milliseconds, node_status, prompt, report

POLL_S = 0.05
_VLLM_USE = re.compile(r"^vllm:(?:kv|gpu)_cache_usage_perc(?:\{[^}]*\})? ([0-9.e+-]+)", re.MULTILINE)
_VLLM_CONFIG = re.compile(r"^vllm:cache_config_info\{([^}]*)\}", re.MULTILINE)


class Pool:
    """Looks again and again at how much KV is in use, in tokens' worth of blocks."""

    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session = session
        self._base_url = base_url
        self.used: list[float] = []
        """At each look."""

    @property
    def peak(self) -> float:
        return max(self.used, default=0.0)

    async def watch(self) -> None:
        while True:
            used = await self._native()
            if used is None:
                used = await self._vllm()
            if used is None:
                return
            self.used.append(used)
            await asyncio.sleep(POLL_S)

    async def _native(self) -> float | None:
        status = await node_status(self._session, self._base_url)
        if not status:
            return None
        return float(held_blocks(status) * status["block_tokens"])

    async def _vllm(self) -> float | None:
        async with self._session.get(f"{self._base_url.removesuffix('/v1')}/metrics") as response:
            text = await response.text() if response.status == 200 else ""
        use, config = _VLLM_USE.search(text), _VLLM_CONFIG.search(text)
        if use is None or config is None:
            return None
        labels = dict(re.findall(r'(\w+)="([^"]*)"', config[1]))
        blocks = next(
            (labels[name] for name in ("num_gpu_blocks", "num_cpu_blocks") if labels.get(name, "").isdigit()), "0"
        )
        return float(use[1]) * int(blocks) * int(labels["block_size"])


class Load:
    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._args = args
        self._session = session
        self._rng = random.Random(args.seed)
        self._system = " ".join(self._rng.choices(WORDS, k=args.system_tokens))

    async def alone(self) -> Sample:
        return await self._ask(prompt(self._rng, 64), 16)

    async def chat(self, clients: asyncio.Semaphore) -> list[Sample]:
        """Each turn has all that was said before."""
        messages, samples = [{"role": "system", "content": self._system}], list[Sample]()
        async with clients:
            for _ in range(self._args.turns):
                turn = " ".join(self._rng.choices(WORDS, k=self._rng.randint(16, 96)))
                messages.append({"role": "user", "content": turn})
                samples.append(await self._ask(messages, self._args.max_tokens))
                messages.append({"role": "assistant", "content": samples[-1].text})
        return samples

    async def _ask(self, messages: list[dict[str, str]], out: int) -> Sample:
        return await ask(self._session, self._args.base_url, self._args.model, messages, out)


async def measure(args: argparse.Namespace) -> tuple[dict[str, list[Sample]], Pool, dict[str, Any]]:
    """The status is a native node's at the end; its `chat_kvr` is of the chats alone."""
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=900)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        load, pool = Load(args, session), Pool(session, args.base_url)
        first = [await load.alone() for _ in range(10)]
        before = await idle(session, args.base_url)
        watcher = asyncio.create_task(pool.watch())
        clients = asyncio.Semaphore(args.concurrency)
        chats = await asyncio.gather(*(load.chat(clients) for _ in range(args.requests)))
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        status = await idle(session, args.base_url)
        if status:
            reused, computed = (status[key] - before[key] for key in ("kv_blocks_reused", "kv_blocks_computed"))
            status["chat_kvr"] = round(reused / (reused + computed), 4)
        return {"after start": first, "chat": [turn for turns in chats for turn in turns]}, pool, status


def table(samples: dict[str, list[Sample]], pool: Pool, concurrency: int) -> list[tuple[str, ...]]:
    start, chats = samples["after start"], samples["chat"]
    firsts, totals = [s.first_token for s in chats], [s.total for s in chats]
    prompts = sum(s.prompt_tokens for s in chats)
    fullest = f"{pool.peak / concurrency:.0f}" if pool.used else "not told"
    usual = f"{median(pool.used) / concurrency:.0f}" if pool.used else "not told"
    rows = [("", "value")]
    for name, seconds in (("first token", firsts), ("whole answer", totals)):
        p50, p99 = milliseconds(seconds), milliseconds(seconds, 0.99)
        rows += [(f"{name} p50 ms", f"{p50:.1f}"), (f"{name} p99 ms", f"{p99:.1f}")]
        rows.append((f"{name} p99 - p50 ms", f"{p99 - p50:.1f}"))
    rows += [
        ("prompt tokens cached", f"{sum(s.cached_tokens for s in chats) / prompts:.1%}"),
        ("KV tokens in use at the fullest, per concurrent request", fullest),
        ("the same, median over time", usual),
        ("tokens of a request, mean", f"{(prompts + sum(s.completion_tokens for s in chats)) / len(chats):.0f}"),
        ("first request after the start, first token ms", f"{start[0].first_token * 1e3:.1f}"),
        ("tenth / ratio", f"{start[9].first_token * 1e3:.1f} / {start[0].first_token / start[9].first_token:.2f}"),
    ]
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--system-tokens", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--requests", type=int, default=96, help="Chats.")
    parser.add_argument("--turns", type=int, default=1, help="Of each chat.")
    parser.add_argument("--concurrency", type=int, default=8)
    args = parser.parse_args()
    samples, pool, status = asyncio.run(measure(args))
    rows = table(samples, pool, args.concurrency)
    told = (("SUSI", "susi"), ("worker busy", "worker_busy"), ("KVR", "chat_kvr"), ("MPFR", "mpfr"))
    rows += [(name, str(status[key])) for name, key in told if key in status]
    rows += [
        (f"{name} p50 / p99 us", f"{status[name]['p50_us']} / {status[name]['p99_us']}")
        for name in ("ild_gap", "ild_wake")
        if name in status
    ]
    report(args.out, rows, samples, status=status, kv_tokens_peak=pool.peak)


if __name__ == "__main__":
    main()
