#!/usr/bin/env python3
"""Thousands of clients that leave at random moments, over HTTP; then whether the node has lost anything by it.

EDGEPROXY_NODE_TOKEN=... .venv/bin/python scripts/bench/cancel_storm.py --base-url http://127.0.0.1:8101/v1
"""

from __future__ import annotations

import argparse
import asyncio
import random
from typing import Any

import aiohttp
from load import arguments, held_blocks, idle, node_token, prompt, report

QUESTION = [{"role": "user", "content": "Tell me about the sea."}]
LONGEST_S = 0.6
"""Before a client leaves: from queued to well into its answer."""


class Storm:
    def __init__(self, args: argparse.Namespace, session: aiohttp.ClientSession) -> None:
        self._args = args
        self._session = session
        self._rng = random.Random(args.seed)
        self.begun = self.answered = self.ended = 0

    async def answer(self) -> str:
        """Greedy, so always the same."""
        body = {"model": self._args.model, "messages": QUESTION, "max_tokens": 48, "temperature": 0}
        async with self._session.post(f"{self._args.base_url}/chat/completions", json=body) as response:
            found: str = (await response.json())["choices"][0]["message"]["content"]
            return found

    async def client(self, left: list[int]) -> None:
        while left:
            left.pop()
            self.begun += 1
            try:
                async with asyncio.timeout(self._rng.uniform(0, LONGEST_S)):
                    await self._request()
                self.ended += 1
            except TimeoutError:
                pass  # it has left: leaving the request closes its connection

    async def _request(self) -> None:
        tokens = self._rng.choice((24, 24, 200, 900))
        body = {
            "model": self._args.model,
            "messages": prompt(self._rng, tokens),
            "max_tokens": self._rng.choice((8, 64, 200)),
            "stream": self._rng.random() < 0.8,
        }
        async with self._session.post(f"{self._args.base_url}/chat/completions", json=body) as response:
            self.answered += response.status == 200
            await response.read()


async def measure(args: argparse.Namespace) -> tuple[Storm, dict[str, Any], bool]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, headers=node_token()) as session:
        storm = Storm(args, session)
        before = await storm.answer()
        left = list(range(args.cancels))
        await asyncio.gather(*(storm.client(left) for _ in range(args.concurrency)))
        status = await idle(session, args.base_url)
        return storm, status, await storm.answer() == before


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cancels", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=32)
    args = parser.parse_args()
    storm, status, same = asyncio.run(measure(args))
    if not status:
        raise SystemExit("the node does not tell its status: give its token in EDGEPROXY_NODE_TOKEN")
    whole = not held_blocks(status)
    rows = [
        ("", ""),
        ("requests begun / answered / ended by themselves", f"{storm.begun} / {storm.answered} / {storm.ended}"),
        ("aborts that the node counted", str(status["aborts"])),
        ("most steps until an abort's blocks were free", str(status["abort_steps_max"])),
        ("all blocks are back", str(whole)),
        ("the same question has the same answer as before", str(same)),
        ("state", status["state"]),
    ]
    report(args.out, rows, {}, status=status)
    raise SystemExit(0 if whole and same and status["abort_steps_max"] <= 2 else 1)


if __name__ == "__main__":
    main()
