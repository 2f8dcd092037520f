"""A request leaves nothing for the cycle collector, which therefore may run seldom."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from edgeproxy.wire.ingress import SCOPE_KEY, Ingress
from tests.gateway.drive import chat, edge


@pytest.fixture
def kept() -> Iterator[None]:
    """What the collector finds stays in `gc.garbage` instead of being freed."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_leaves_no_cycles(tmp_path: Path, kept: None, stream: bool) -> None:
    async with edge(tmp_path) as e:

        async def one() -> None:
            sent: list[Any] = []
            body = orjson.dumps(chat("ok", stream=stream))

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message: Any) -> None:
                sent.append(message)

            known = Ingress("h1", 0.0, lambda: None)
            known.task = asyncio.current_task()
            await e.app(
                {
                    "type": "http",
                    "method": "POST",
                    "path": "/v1/chat/completions",
                    "headers": [(b"host", b"127.0.0.1:8080"), (b"content-type", b"application/json")],
                    "client": ("127.0.0.1", 50000),
                    "extensions": {SCOPE_KEY: known},
                },
                receive,
                send,
            )
            assert sent[0]["status"] == 200
            assert not sent[-1].get("more_body", False)

        for _ in range(3):
            await asyncio.ensure_future(one())
        gc.collect()
        modules = ("edgeproxy.gateway", "edgeproxy.wire", "edgeproxy.routing", "edgeproxy.upstream.response")
        ours = [found for found in gc.garbage if type(found).__module__.startswith(modules)]
        assert not ours
