"""llama.cpp's own server as a node. Skipped where there is none: have `llama-server` on PATH or in LLAMA_SERVER."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import orjson
import pytest

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.config_file import load
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.protocol.openai.sse import DONE, SseParser
from edgeproxy.upstream.node import Fleet
from edgeproxy.upstream.probe import Prober
from engine.model.source import resolve
from tests.e2e.deployment import SOURCE, free_ports, wait_until
from tests.gateway.drive import Exchange, Lines, begin

SERVER = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
CONTEXT = 2048
pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(SERVER is None, reason="no llama-server on PATH or in LLAMA_SERVER"),
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    assert SERVER is not None
    (port,) = free_ports(1)
    command = [SERVER, "--model", str(resolve(SOURCE)), "--port", str(port), "--metrics", "--ctx-size", str(CONTEXT)]
    command += ["--parallel", "1", "--threads", "2", "--no-webui"]
    libraries = {"LD_LIBRARY_PATH": str(Path(SERVER).parent)}
    process = subprocess.Popen(
        command, env=os.environ | libraries, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    found = f"http://127.0.0.1:{port}"

    def well() -> bool:
        assert process.poll() is None, "llama-server ended"
        try:
            return httpx.get(f"{found}/health").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(well, 60)
        yield found
    finally:
        process.terminate()
        process.wait(20)


def chat(**more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
    return {"model": "small", "messages": messages, "temperature": 0, "max_tokens": 16, **more}


async def ask(app: AsgiApp, body: dict[str, object]) -> Exchange:
    """Patiently: on a busy machine its first prompt may take long."""
    exchange = begin(app, body)
    async with asyncio.timeout(120):
        await exchange.task
    return exchange


async def test_a_real_server_is_probed_asked_timed_and_refuses_in_openai_shape(tmp_path: Path, url: str) -> None:
    file = tmp_path / "regions.yaml"
    file.write_text(
        "regions:\n  a:\n    nodes:\n"
        f"      - {{kind: llamacpp, url: '{url}', models: [small], names: {{small: SmolLM2}}}}\n"
    )
    config = load(file)
    fleet = Fleet.from_config(config, token="t")
    lines = Lines(tmp_path)
    app, _, _ = build(config, fleet, Keys(), lines.log, Random(1), 1)
    (node,) = fleet.nodes
    try:
        assert await Prober(fleet, rng=Random(1)).probe(node)
        assert node.context == CONTEXT
        assert node.outlook.load.reported_at is not None, "its metrics were read"
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
        first, second, _ = lines.requests
        assert first["prefill_s"] > 0, "from its timings"
        assert first["first_token_s"] > 0
        assert second["cached_tokens"] > 0, "the same prompt again"
    finally:
        fleet.close()
        lines.close()
