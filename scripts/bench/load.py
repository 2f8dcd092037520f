"""A small load generator for OpenAI-compatible servers: what a user of the API sees, in time stamps.

Token counts come from `usage`, never from counting events. Time stamps are taken as bytes arrive; JSON is parsed
afterwards, so that the generator takes as little CPU as it can.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

WORDS = "time year people way day man thing woman life child world school state family student group hand".split(" ")


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: seconds and token counts."""

    first_token: float
    total: float
    decode: float
    """First to last event with content."""
    prompt_tokens: int
    completion_tokens: int
    gaps: tuple[float, ...]
    server_timing: dict[str, float]
    """The answer's Server-Timing, in milliseconds."""
    stamps: tuple[float, ...] = ()
    """When content came, by this process's clock."""
    cached_tokens: int = 0
    text: str = ""

    @property
    def start(self) -> float:
        """When it was sent, by the same clock."""
        return self.stamps[0] - self.first_token


class Refused(RuntimeError):
    """The server answered with another status than 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body

    @property
    def structured(self) -> bool:
        """Whether it is an error as OpenAI writes them."""
        try:
            error = json.loads(self.body)["error"]
            return {"message", "type", "param", "code"} <= set(error)
        except (ValueError, KeyError, TypeError):
            return False


def prompt(rng: random.Random, tokens: int) -> list[dict[str, str]]:
    """Messages of about `tokens` prompt tokens whose first words are unique, so that no cache can help."""
    count = max(1, tokens - 20)
    return [
        {"role": "system", "content": " ".join(rng.choices(WORDS, k=4))},
        {"role": "user", "content": " ".join(rng.choices(WORDS, k=count))},
    ]


async def ask(
    session: aiohttp.ClientSession,
    base_url: str,
    model: str,
    messages: list[dict[str, str]],
    max_tokens: int,
    enough: Callable[[], bool] = lambda: False,
) -> Sample:
    """enough: asked at each piece; the client leaves where it says so, and its sample has no usage.

    Raises Refused when it does not answer 200, RuntimeError with the server's own words when it fails later.
    """
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[tuple[float, bytes]] = []
    start = time.perf_counter()
    async with session.post(f"{base_url}/chat/completions", json=body, headers=node_token()) as response:
        if response.status != 200:
            raise Refused(response.status, await response.text())
        timing = _server_timing(response.headers.get("server-timing", ""))
        async for data in response.content.iter_any():
            pieces.append((time.perf_counter(), data))
            if left := enough():
                break
        else:
            left = False
    return _sample(start, pieces, timing, left=left)


def _sample(start: float, pieces: Sequence[tuple[float, bytes]], timing: dict[str, float], *, left: bool) -> Sample:
    pending, stamps, usage, said = b"", [], None, ""
    for at, data in pieces:
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            usage = event.get("usage") or usage
            if content := "".join(choice["delta"].get("content") or "" for choice in event["choices"]):
                stamps.append(at)
                said += content
    if left:
        usage = {"prompt_tokens": 0, "completion_tokens": len(stamps)}
    if not stamps or usage is None:
        raise RuntimeError("an answer without content or usage")
    return Sample(
        first_token=stamps[0] - start,
        total=stamps[-1] - start,
        decode=stamps[-1] - stamps[0],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
        gaps=tuple(b - a for a, b in itertools.pairwise(stamps)),
        server_timing=timing,
        stamps=tuple(stamps),
        text=said,
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


def _server_timing(header: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in header.split(","))):
        name, *parameters = entry.split(";")
        for parameter in parameters:
            if parameter.strip().startswith("dur="):
                found[name] = float(parameter.strip()[4:])
    return found


async def together(
    session: aiohttp.ClientSession, base_url: str, model: str, prompts: list[list[dict[str, str]]], max_tokens: int
) -> tuple[list[Sample], float]:
    """All prompts at once; also the seconds from the first request to the last token."""
    start = time.perf_counter()
    samples = await asyncio.gather(*(ask(session, base_url, model, p, max_tokens) for p in prompts))
    return list(samples), time.perf_counter() - start


def node_token() -> dict[str, str]:
    """Of the node, from its environment variable; a proxy asks for none."""
    token = os.environ.get("EDGEPROXY_NODE_TOKEN")
    return {"x-node-token": token} if token else {}


async def node_status(session: aiohttp.ClientSession, base_url: str) -> dict[str, Any]:
    """What a native node tells of itself; empty where there is none."""
    async with session.get(f"{base_url.removesuffix('/v1')}/node/v1/status", headers=node_token()) as response:
        found: dict[str, Any] = await response.json() if response.status == 200 else {}
        return found


async def idle(session: aiohttp.ClientSession, base_url: str, seconds: float = 30) -> dict[str, Any]:
    """The node's status once nothing runs or waits and all blocks are back; after `seconds` as it is."""
    end = time.monotonic() + seconds
    while True:
        status = await node_status(session, base_url)
        if not status or time.monotonic() > end or not (status["running"] + status["waiting"] + held_blocks(status)):
            return status
        await asyncio.sleep(0.05)


def held_blocks(status: dict[str, Any]) -> int:
    """KV blocks that sequences hold or are promised."""
    return int(status["kv_blocks_total"] - status["kv_blocks_free"] - status["kv_blocks_evictable"])


def tokens_per_second(sample: Sample) -> float:
    return (sample.completion_tokens - 1) / sample.decode


def milliseconds(values: Sequence[float], share: float = 0.5) -> float:
    """The quantile `share` of seconds, in milliseconds."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return (ordered[low] + (ordered[high] - ordered[low]) * (place - low)) * 1e3


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0].split(": ")[1] if names else platform.processor(),
        "cores": len(names),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def arguments(about: str | None) -> argparse.ArgumentParser:
    """What every load takes."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8101/v1")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="Where to write all of it as JSON.")
    return parser


def report(path: Path | None, table: list[tuple[str, ...]], samples: dict[str, list[Sample]], **more: Any) -> None:
    """Prints a Markdown table; writes it with every sample, and `more`, as JSON when a path is given."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    for number, row in enumerate(table):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    if path is not None:
        data = {
            "machine": machine(),
            "table": table,
            "samples": {name: [asdict(s) for s in rows] for name, rows in samples.items()},
            **more,
        }
        path.write_text(json.dumps(data, indent=1))
