"""Two processes of the proxy on the same sockets, one after the other, as a supervisor starts them."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from pathlib import Path

import pytest

from edgeproxy.client.httpx import AsyncClient
from tests.fake_node import FakeNode
from tests.wire.raw import PATIENCE_S

pytestmark = pytest.mark.long
HAND_OVER = 'exec 3<&"$0" 4<&"$1"; shift; export LISTEN_FDS=2 LISTEN_PID=$$; exec "$@"'


async def start(config: Path, tcp: socket.socket, udp: socket.socket) -> Process:
    """A proxy on these sockets that has said that it is ready."""
    serve = [sys.executable, "-m", "edgeproxy", "serve", "--config", str(config), "--state", str(config.parent)]
    fds = (tcp.fileno(), udp.fileno())
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", HAND_OVER, *map(str, fds), *serve,
        pass_fds=fds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    await said(process, b"edgeproxy is ready")
    return process


async def said(process: Process, words: bytes) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        while words not in (line := await process.stdout.readline()):
            assert line, "it has ended"


async def test_an_http3_answer_goes_on_while_the_next_process_takes_who_comes(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(tcp.getsockname())
        url = f"https://127.0.0.1:{tcp.getsockname()[1]}"
        ca = tmp_path / "ca.pem"
        async with FakeNode() as node:
            config = tmp_path / "regions.yaml"
            nodes = f"regions: {{here: {{nodes: [{{url: '{node.url}', models: [slow]}}]}}}}"
            config.write_text(f"listen: {{https: '127.0.0.1:{tcp.getsockname()[1]}'}}\n{nodes}\n")
            elder = await start(config, tcp, udp)
            processes = [elder]
            try:
                async with AsyncClient(verify=ca, only=True, timeout=PATIENCE_S) as early:
                    body = {"model": "slow", "messages": [{"role": "user", "content": "x"}]}
                    running = asyncio.create_task(early.post(f"{url}/v1/chat/completions", json=body))
                    await node.until(lambda: bool(node.chats))
                    processes.append(await start(config, tcp, udp))
                    elder.terminate()
                    await said(elder, b"stopping")
                    async with asyncio.timeout(PATIENCE_S):
                        while not await is_ready(url, ca):  # the elder, in its last moments, says that it is not
                            pass
                    assert elder.returncode is None
                    assert not running.done()
                    node.gate.set()
                    assert (await running).status_code == 200
                async with asyncio.timeout(PATIENCE_S):
                    assert await elder.wait() == 0
                assert await is_ready(url, ca)
            finally:
                for process in processes:
                    if process.returncode is None:
                        os.kill(process.pid, 2)
                        await process.communicate()


async def is_ready(url: str, ca: Path) -> bool:
    """Asked over HTTP/3, on a new connection."""
    async with AsyncClient(verify=ca, only=True, timeout=PATIENCE_S) as client:
        return (await client.get(f"{url}/readyz")).status_code == 200
