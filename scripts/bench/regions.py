#!/usr/bin/env python3
"""The real proxy before three regions at 5, 40 and 120 ms, of two modelled nodes each: how soon first tokens come when
the proxy chooses, against always the nearest region and against each region in turn, and how well it foretold them.

    .venv/bin/python scripts/bench/regions.py [--seconds 20] [--rounds 2] [--light 4] [--heavy 14] [--out x.json]

Requests come at random moments whatever becomes of earlier ones (open loop): new chats on shared system prompts, and
chats that go on. "nearest" and "in turn" are the same requests, pinned by `x-edge-region`; the three alternate within
one run. Each has texts of its own, so that none finds what another left in the nodes' caches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from load import WORDS, machine, milliseconds

REGIONS = {"near": 5, "middle": 40, "far": 120}
NODES = 2
WAYS = ("edgeproxy", "nearest", "in turn")
MODEL = "modelled"
SYSTEMS, SYSTEM_CHARS = 6, 1600
GOES_ON = 0.6
MAX_CHARS = 7000


@dataclass
class Seen:
    """What became of the requests of one way under one load."""

    first_s: list[float] = field(default_factory=list)
    failed: int = 0
    regions: Counter[str] = field(default_factory=Counter)
    decisions: list[dict[str, Any]] = field(default_factory=list)


def text(rng: Random, chars: float) -> str:
    words = rng.choices(WORDS, k=max(int(chars / 5), 1))
    return " ".join(words)


def chats(rng: Random, mark: str) -> Iterator[tuple[list[dict[str, str]], int]]:
    """Messages and how long the answer may be; `mark` makes them unlike those of another mark."""
    systems = [f"{mark} {number} {text(rng, SYSTEM_CHARS)}" for number in range(SYSTEMS)]
    going: list[list[dict[str, str]]] = []
    while True:
        if going and rng.random() < GOES_ON:
            chat = going.pop(rng.randrange(len(going)))
        else:
            chat = [{"role": "system", "content": systems[min(int(rng.expovariate(0.7)), SYSTEMS - 1)]}]
        chat = [*chat, {"role": "user", "content": text(rng, min(rng.lognormvariate(5.5, 1.0), 4000))}]
        output = max(4, min(int(rng.lognormvariate(3.8, 0.7)), 256))
        yield chat, output
        if sum(len(message["content"]) for message in chat) < MAX_CHARS:
            going.append([*chat, {"role": "assistant", "content": text(rng, output * 4)}])


class Client:
    def __init__(self, session: aiohttp.ClientSession, port: int, admin: int) -> None:
        self._session = session
        self._url = f"http://127.0.0.1:{port}/v1/chat/completions"
        self._admin = f"http://127.0.0.1:{admin}/admin"

    async def ready(self) -> None:
        async with asyncio.timeout(60):
            while True:
                try:
                    async with self._session.get(f"{self._admin}/status") as answer:
                        nodes = (await answer.json())["nodes"]
                        if all(node["ready"] and node["rtt_s"] for node in nodes):
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.2)

    async def load(self, way: str, rate: float, seconds: float, seed: int, mark: str) -> Seen:
        """Requests at `rate` a second for so long, and then to the end of the last."""
        rng, seen, names = Random(seed), Seen(), list(REGIONS)
        source, under_way = chats(rng, mark), list[asyncio.Task[None]]()
        begun, at, number = time.perf_counter(), 0.0, 0
        while (at := at + rng.expovariate(rate)) < seconds:
            await asyncio.sleep(max(begun + at - time.perf_counter(), 0.0))
            number += 1
            fields = {"x-request-id": f"{mark}-{number}"}
            if way != "edgeproxy":
                fields["x-edge-region"] = names[0] if way == "nearest" else names[number % len(names)]
            under_way.append(asyncio.create_task(self._one(next(source), fields, seen)))
        await asyncio.gather(*under_way)
        async with self._session.get(f"{self._admin}/decisions?limit=1000") as answer:
            made = (await answer.json())["decisions"]
        seen.decisions = [one for one in made if one["request_id"].startswith(f"{mark}-")]
        seen.regions = Counter(one["region"] for one in seen.decisions if one["region"])
        return seen

    async def _one(self, asked: tuple[list[dict[str, str]], int], fields: dict[str, str], seen: Seen) -> None:
        body = {"model": MODEL, "messages": asked[0], "max_tokens": asked[1], "stream": True}
        start = time.perf_counter()
        first, raw = None, b""
        async with self._session.post(self._url, json=body, headers=fields) as answer:
            async for data in answer.content.iter_any():
                raw += data
                if first is None and b'"content"' in raw:
                    first = time.perf_counter() - start
        if answer.status != 200 or first is None or not raw.endswith(b"data: [DONE]\n\n"):
            seen.failed += 1
        else:
            seen.first_s.append(first)


def configuration(port: int, folder: Path) -> tuple[Path, list[int]]:
    lines = [f'listen: {{http: "127.0.0.1:{port}", admin: "127.0.0.1:{port + 1}"}}', "regions:"]
    ports = iter(range(port + 2, port + 2 + NODES * len(REGIONS)))
    used = []
    for name, delay in REGIONS.items():
        lines += [f"  {name}:", f"    relay: {{delay_ms: {delay}}}", "    nodes:"]
        for _ in range(NODES):
            used.append(next(ports))
            lines.append(f'      - {{url: "http://127.0.0.1:{used[-1]}", models: [{MODEL}]}}')
    path = folder / "regions.yaml"
    path.write_text("\n".join([*lines, ""]))
    return path, used


@asynccontextmanager
async def process(*command: str, log: Path) -> Any:
    with log.open("wb") as out:
        started = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=out, stderr=out)
        try:
            yield
        finally:
            started.terminate()
            await started.wait()


async def run(args: argparse.Namespace) -> dict[str, dict[str, Seen]]:
    found = {load: {way: Seen() for way in WAYS} for load in ("light", "heavy")}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config, ports = configuration(args.port, folder)
        nodes = ["--ports", ",".join(map(str, ports)), "--speed", str(args.speed)]
        here = str(Path(__file__).parent / "modelled_node.py")
        await stack.enter_async_context(process(here, *nodes, log=folder / "nodes.log"))
        serve = ["-m", "edgeproxy", "serve", "--config", str(config), "--state", str(folder / "state")]
        await stack.enter_async_context(process(*serve, log=folder / "proxy.log"))
        unlimited = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=unlimited))
        client = Client(session, args.port, args.port + 1)
        await client.ready()
        await client.load("in turn", args.light, args.seconds / 2, 0, "warm-up")
        for number in range(args.rounds):
            for load, rate in (("light", args.light), ("heavy", args.heavy)):
                for turn in range(len(WAYS)):
                    way = WAYS[(turn + number) % len(WAYS)]
                    mark = f"{load}{number}{WAYS.index(way)}-{os.getpid()}"
                    seen = await client.load(way, rate, args.seconds, args.seed + number, mark)
                    _add(found[load][way], seen)
    return found


def _add(whole: Seen, part: Seen) -> None:
    whole.first_s += part.first_s
    whole.failed += part.failed
    whole.decisions += part.decisions
    whole.regions += part.regions


def errors(seen: Seen) -> list[float]:
    """Distance between forecast and fact as a share of the fact."""
    known = [one for one in seen.decisions if one["error_s"] is not None and one["actual_s"]]
    return sorted(abs(one["error_s"]) / one["actual_s"] for one in known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each way, load and round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--light", type=float, default=4.0, help="requests a second")
    parser.add_argument("--heavy", type=float, default=14.0)
    parser.add_argument("--speed", type=float, default=4.0, help="of the nodes, in times of the recording")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=8240)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = asyncio.run(run(args))
    print("| load | way | requests | failed | first token p50 ms | p95 ms | by region | forecast error p50 |")
    print("|---|---|---|---|---|---|---|---|")
    for load, ways in found.items():
        for way, seen in ways.items():
            p50, p95 = milliseconds(seen.first_s), milliseconds(seen.first_s, 0.95)
            missed = errors(seen)
            share = f"{missed[len(missed) // 2] * 100:.0f} %" if missed else "-"
            shares = " ".join(f"{name} {seen.regions[name]}" for name in REGIONS)
            count = len(seen.first_s) + seen.failed
            print(f"| {load} | {way} | {count} | {seen.failed} | {p50:.0f} | {p95:.0f} | {shares} | {share} |")
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": machine(), **_plain(found)}, indent=1))


def _plain(found: dict[str, dict[str, Seen]]) -> dict[str, Any]:
    return {load: {way: vars(seen) for way, seen in ways.items()} for load, ways in found.items()}


if __name__ == "__main__":
    main()
