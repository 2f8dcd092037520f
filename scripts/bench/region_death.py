#!/usr/bin/env python3
"""Kills one of three native regions under many streams, several times: no client may see it, and every text must be the
one of an unbroken run.

    .venv/bin/python scripts/bench/region_death.py [--streams 32] [--rounds 10] [--tokens 64] [--out x.json]

Half of the streams are greedy, half sampled with a seed. The region that serves most of them is killed (SIGKILL) when
a third of the text is there; the proxy starts it again, and the next round begins when all three are ready. Exit status
1 if any stream failed or said something else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import orjson

sys.path.insert(0, str(Path(__file__).parents[2]))

from edgeproxy.config import DEFAULT_MODEL
from edgeproxy.protocol.openai.sse import DONE, SseParser
from tests.e2e.deployment import SOURCE, free_ports

PROMPTS = ("Tell me about rivers.", "Count animals 🐟 🐦.", "Why is the sky blue?", "Write about 북한산 and 🏔️.")
READY_S = 120.0


@dataclass
class Round:
    failed: int = 0
    different: int = 0
    resumed: int = 0
    longest_gap_s: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def body(number: int, tokens: int) -> dict[str, Any]:
    sampled = {"temperature": 1.0, "seed": number, "ignore_eos": True} if number % 2 else {"temperature": 0}
    message = {"role": "user", "content": PROMPTS[number % len(PROMPTS)]}
    return {"model": DEFAULT_MODEL, "messages": [message], "stream": True, "max_tokens": tokens, **sampled}


class Stream:
    """One client."""

    def __init__(self, number: int, tokens: int) -> None:
        self.number, self.tokens = number, tokens
        self.text, self.region, self.fault = "", "", ""
        self.events, self.gap_s = 0, 0.0
        self.moved = asyncio.Event()

    async def run(self, client: httpx.AsyncClient, url: str) -> Stream:
        try:
            await self._read(client, url)
        except (httpx.HTTPError, ValueError) as error:
            self.fault = f"{type(error).__name__}: {error}"
        self.moved.set()
        return self

    async def _read(self, client: httpx.AsyncClient, url: str) -> None:
        parser, done, last = SseParser(), False, monotonic()
        async with client.stream("POST", url, json=body(self.number, self.tokens)) as answer:
            self.region = answer.headers.get("x-edge-region", "")
            if answer.status_code != 200:
                raise ValueError(f"status {answer.status_code}")
            async for data in answer.aiter_bytes():
                now = monotonic()
                self.gap_s, last = max(self.gap_s, now - last if self.events else 0.0), now
                for event in parser.feed(data):
                    done = done or event.data == DONE
                    if event.data and event.data != DONE:
                        self._take(orjson.loads(event.data))
        if not done:
            raise ValueError("ended without [DONE]")

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise ValueError(f"error event {chunk['error'].get('code')}")
        self.text += "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        self.events += 1
        if self.events > self.tokens // 3:
            self.moved.set()


class Deployment:
    """`edgeproxy serve` with three native regions in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.http, self.admin, *self.nodes = free_ports(5)
        self.regions = dict(zip(("alpha", "beta", "gamma"), self.nodes, strict=True))
        self.config = folder / "regions.yaml"
        lines = [f'listen: {{http: "127.0.0.1:{self.http}", admin: "127.0.0.1:{self.admin}"}}', "regions:"]
        for name, port in self.regions.items():
            launch = f'{{source: "{SOURCE}", kv_tokens: 16384, threads: 2}}'
            node = f'{{url: "http://127.0.0.1:{port}", models: [{DEFAULT_MODEL}], launch: {launch}}}'
            lines.append(f"  {name}: {{nodes: [{node}]}}")
        self.config.write_text("\n".join([*lines, ""]))
        self.log = (folder / "log").open("wb")
        self.process: asyncio.subprocess.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}/v1/chat/completions"

    async def start(self) -> None:
        command = [sys.executable, "-m", "edgeproxy", "serve", "--config", str(self.config)]
        command += ["--state", str(self.config.parent / "state")]
        self.process = await asyncio.create_subprocess_exec(*command, stdout=self.log, stderr=self.log)

    async def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        await self.process.wait()
        self.log.close()

    async def all_ready(self, client: httpx.AsyncClient) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    status = (await client.get(f"http://127.0.0.1:{self.admin}/admin/status")).json()
                except httpx.TransportError:
                    status = {"nodes": []}
                if len(status["nodes"]) == 3 and all(node["ready"] for node in status["nodes"]):
                    return
                await asyncio.sleep(0.1)

    def kill(self, region: str) -> None:
        port = str(self.regions[region])
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    command = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"engine" in command and port.encode() in command and _parent(entry) == self.process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
        raise RuntimeError(f"no engine of region {region} on port {port}")


def _parent(entry: Path) -> int:
    return int((entry / "stat").read_text().rpartition(")")[2].split()[1])


async def one_round(deployment: Deployment, client: httpx.AsyncClient, expected: list[str], tokens: int) -> Round:
    began = monotonic()
    streams = [Stream(number, tokens) for number in range(len(expected))]
    tasks = [asyncio.create_task(stream.run(client, deployment.url)) for stream in streams]
    await asyncio.gather(*(stream.moved.wait() for stream in streams[: max(1, len(streams) // 2)]))
    regions = [stream.region for stream in streams if stream.region]
    victim = max(set(regions), key=regions.count)
    deployment.kill(victim)
    await asyncio.gather(*tasks)
    found = Round(seconds=round(monotonic() - began, 2))
    for stream, text in zip(streams, expected, strict=True):
        found.failed += bool(stream.fault)
        found.different += not stream.fault and stream.text != text
        found.faults += [stream.fault] if stream.fault else []
    found.longest_gap_s = round(max(stream.gap_s for stream in streams), 3)
    return found


async def resumes(deployment: Deployment, client: httpx.AsyncClient) -> int:
    text = (await client.get(f"http://127.0.0.1:{deployment.admin}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith('edgeproxy_resumes_total{outcome="exact"}')]
    return int(float(lines[0].split()[-1])) if lines else 0


async def run(options: argparse.Namespace) -> list[Round]:
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(Path(folder))
        await deployment.start()
        try:
            limits = httpx.Limits(max_connections=None)
            async with httpx.AsyncClient(timeout=httpx.Timeout(300), limits=limits) as client:
                await deployment.all_ready(client)
                whole = [
                    Stream(number, options.tokens).run(client, deployment.url) for number in range(options.streams)
                ]
                unbroken = await asyncio.gather(*whole)
                if any(stream.fault for stream in unbroken):
                    raise RuntimeError(f"a stream failed before anything was killed: {unbroken[0].fault}")
                before = 0
                for number in range(options.rounds):
                    await deployment.all_ready(client)
                    expected = [stream.text for stream in unbroken]
                    found = await one_round(deployment, client, expected, options.tokens)
                    total = await resumes(deployment, client)
                    found.resumed, before = total - before, total
                    rounds.append(found)
                    print(f"round {number + 1}: {found}", flush=True)
        finally:
            await deployment.stop()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rounds = asyncio.run(run(options))
    failed, different = sum(r.failed for r in rounds), sum(r.different for r in rounds)
    resumed = sum(r.resumed for r in rounds)
    total = options.streams * options.rounds
    print(f"{total} streams, {resumed} resumed: {failed} failed, {different} said something else")
    if options.out is not None:
        value = {"streams": total, "resumed": resumed, "failed": failed, "different": different}
        options.out.write_text(json.dumps({**value, "rounds": [vars(r) for r in rounds]}, indent=1))
    sys.exit(1 if failed or different else 0)


if __name__ == "__main__":
    main()
