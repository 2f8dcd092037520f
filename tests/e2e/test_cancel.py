"""A client that leaves frees its sequence on the node within two steps, whatever the protocol and the phase."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import pytest
from curl_cffi import requests

from tests.e2e.deployment import MODEL, Deployment, wait_until

pytestmark = pytest.mark.xdist_group("e2e")
LONG = "word " * 6000


def body(*, stream: bool, long_prompt: bool) -> bytes:
    question = {"role": "user", "content": LONG if long_prompt else "Count to a thousand."}
    request = {"model": MODEL, "messages": [question], "max_tokens": 1500, "ignore_eos": True, "stream": stream}
    return json.dumps(request).encode()


class H1(AbstractContextManager["H1"]):
    """A plain socket, so that leaving is just closing it."""

    def __init__(self, deployment: Deployment, content: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", deployment.http), timeout=60)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        self.socket.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)

    def first_bytes(self) -> None:
        assert self.socket.recv(100).startswith(b"HTTP/1.1 200")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()


def status(deployment: Deployment) -> dict[str, Any]:
    return deployment.node_status(deployment.near)


def assert_freed_within_two_steps(deployment: Deployment, before: dict[str, Any]) -> None:
    wait_until(lambda: status(deployment)["aborts"] > before["aborts"], 20, deployment)
    after = status(deployment)
    assert after["running"] == 0
    assert after["abort_steps_max"] <= 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_over_http1(deployment: Deployment, stream: bool, phase: str) -> None:
    before = status(deployment)
    with H1(deployment, body(stream=stream, long_prompt=phase == "prefill")) as client:
        if stream and phase == "decode":
            client.first_bytes()
        steps = before["step_counter"] + (1 if phase == "prefill" else 20)
        wait_until(lambda: status(deployment)["running"] and status(deployment)["step_counter"] > steps, 20, deployment)
    assert_freed_within_two_steps(deployment, before)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
async def test_over_http3(deployment: Deployment, stream: bool, phase: str) -> None:
    before = status(deployment)
    content = body(stream=stream, long_prompt=phase == "prefill")
    steps = before["step_counter"] + (1 if phase == "prefill" else 20)
    async with requests.AsyncSession(**deployment.http3()) as session:
        request = asyncio.create_task(
            session.post(
                f"{deployment.tls_url}/chat/completions",
                data=content,
                headers={"content-type": "application/json"},
                stream=stream,
            )
        )

        def working() -> bool:
            found = status(deployment)
            return bool(found["running"]) and found["step_counter"] > steps

        while not await asyncio.to_thread(working):
            assert not request.done() or stream, "the answer came before it could be given up"
        if request.done():
            await request.result().aclose()
        else:
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
    await asyncio.to_thread(assert_freed_within_two_steps, deployment, before)
