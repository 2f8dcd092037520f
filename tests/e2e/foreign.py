"""Servers of other makers as nodes: what each of them, the real one, has to do behind the proxy."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import orjson

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.config_file import load
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.protocol.openai.sse import DONE, SseParser
from edgeproxy.upstream.node import Fleet
from edgeproxy.upstream.probe import Prober
from tests.e2e.deployment import wait_until
from tests.gateway.drive import Exchange, Lines, begin


@contextmanager
def running(command: list[str], url: str, seconds: float, environment: Mapping[str, str]) -> Iterator[None]:
    """A server that is well within so many seconds, until the end."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=os.environ | environment, stdout=quiet, stderr=quiet)

    def well() -> bool:
        assert process.poll() is None, f"{command[0]} ended"
        try:
            return httpx.get(f"{url}/health").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(well, seconds)
        yield
    finally:
        process.terminate()
        process.wait(30)


def chat(**more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    return {"model": "small", "messages": messages, "temperature": 0, "max_tokens": 16, **more}


async def ask(app: AsgiApp, body: dict[str, object]) -> Exchange:
    """Patiently: on a busy machine its first prompt may take long."""
    exchange = begin(app, body)
    async with asyncio.timeout(120):
        await exchange.task
    return exchange


async def probed_asked_and_refused(folder: Path, kind: str, url: str, theirs: str, context: int) -> list[Any]:
    """The records of a whole answer, a streamed one of the same prompt, and a refusal. `theirs`: its model's name."""
    file = folder / "regions.yaml"
    node = f"{{kind: {kind}, url: '{url}', models: [small], names: {{small: '{theirs}'}}}}"
    file.write_text(f"regions:\n  a:\n    nodes:\n      - {node}\n")
    fleet = Fleet.from_config(load(file), token="t")
    lines = Lines(folder)
    app, *_ = build(load(file), fleet, Keys(), lines.log, Random(1), 1)
    (found,) = fleet.nodes
    try:
        assert await Prober(fleet, rng=Random(1)).probe(found)
        assert found.context == context
        assert found.outlook.load.reported_at is not None, "its metrics were read"
        whole = await ask(app, chat())
        assert whole.status == 200
        assert "Paris" in whole.json["choices"][0]["message"]["content"]
        streamed = await ask(app, chat(stream=True, stream_options={"include_usage": True}))
        events = SseParser().feed(streamed.body)
        assert events[-1].data == DONE
        chunks = [orjson.loads(event.data) for event in events[:-1]]
        text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
        assert text == whole.json["choices"][0]["message"]["content"]
        refused = await ask(app, chat(messages="no list"))
        assert refused.status == 400
        assert set(refused.error) >= {"message", "type", "param", "code"}
        return list(lines.requests)
    finally:
        fleet.close()
        lines.close()
