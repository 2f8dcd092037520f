#!/usr/bin/env python3
"""HTTP/3 requests per core: aioquic as its own example serves it, our wire around the same application, and the whole
proxy, one after the other.

    .venv/bin/python scripts/bench/h3_requests.py [--rounds 5] [--at-once 32] [--out FILE]

POSTs of a short chat, answered with 0.4 kB; closed loop. The server has the last core for itself; the client (libcurl)
and the proxy's nodes share the others. All sides stand at once, and have their turns one after the other in each round.

  plain   scripts/bench/peers/plain_h3.py, and an application that reads the request and gives a fixed answer
  turn    the same, which sends once a turn of the event loop instead of after each piece
  wire    edgeproxy.wire.h3_listener, and the same application
  proxy   edgeproxy serve, with keys, routing and its log, and nodes that give the same answer over HTTP/1.1
  wire-qh3, proxy-qh3   the two on qh3 instead of aioquic
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import pycurl
from load import machine
from peers import plain_h3
from protocols import VERSIONS, Load, cpu_s

from edgeproxy.config import Address, QuicLibrary
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate

SIDES: Final = ("plain", "turn", "wire", "wire-qh3", "proxy", "proxy-qh3")
READY_S: Final = 30.0
NODES: Final = 4
"""Of the proxy, all of them the one process: so many that none is ever hot."""
ASKED: Final = json.dumps(
    {
        "model": "mock",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant that gives short replies."},
            {"role": "user", "content": "Write a short note on how a fox and a dog may come to be friends in a wood."},
        ],
        "max_tokens": 64,
    }
).encode()
ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "mock",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "A fox met a dog by the river, and neither ran."},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 42, "completion_tokens": 13, "total_tokens": 55},
    }
).encode()
LENGTH: Final = str(len(ANSWER)).encode()


async def application(scope: Any, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", LENGTH)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


class Node(asyncio.Protocol):
    """Answers each request; they are told apart by the body that all of them have, and probes by having none."""

    _HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._seen = b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while (end := self._seen.find(b"\r\n\r\n")) >= 0:
            head = self._seen[:end].lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(self._seen) < end + 4 + length:
                return
            self._seen = self._seen[end + 4 + length :]
            body = ANSWER if length else b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
            self._transport.write(self._HEAD + b"%d\r\n\r\n" % len(body) + body)


class Chats(Load):
    """As `protocols.py` loads, with a chat as request."""

    def __init__(self, url: str, ca: Path, at_once: int) -> None:
        super().__init__(VERSIONS["h3"], url, ca, "none", at_once)
        for handle in self._handles:
            handle.setopt(pycurl.URL, url + "/v1/chat/completions")
            handle.setopt(pycurl.POSTFIELDS, ASKED)
            handle.setopt(pycurl.HTTPHEADER, ["authorization: Bearer none", "content-type: application/json"])


async def serve(side: str, port: int, certificate: Path, key: Path) -> None:
    if side in ("plain", "turn"):
        await plain_h3.serve(application, port, certificate, key, once_a_turn=side == "turn")
    elif side.startswith("wire"):
        library: QuicLibrary = "qh3" if side.endswith("qh3") else "aioquic"
        listener = QuicListener(application, Limits(), certificate=certificate, key=key, state={}, library=library)
        await listener.start(Address("127.0.0.1", port))
    else:
        await asyncio.get_running_loop().create_server(Node, "127.0.0.1", port)
    await asyncio.Event().wait()


@contextmanager
def started(command: list[str], cores: set[int], folder: Path) -> Iterator[int]:
    with (folder / "servers.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, preexec_fn=lambda: os.sched_setaffinity(0, cores)
        )  # fmt: skip
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def wait(url: str, ca: Path) -> None:
    """Until it answers over HTTP/3. Raises RuntimeError when it does not."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        try:
            return Chats(url, ca, 1).run(1)
        except RuntimeError:
            time.sleep(0.2)
    raise RuntimeError(f"{url} does not answer; what its process says is above")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def race(sides: list[str], rounds: int, requests: int, at_once: int) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    own, rest = {cores[-1]}, set(cores[:-1]) or {cores[-1]}
    found: dict[str, Any] = {side: defaultdict(list) for side in sides}
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        certificate = make_dev_certificate(folder)
        node = free_port()
        again = [sys.executable, __file__, "--serve"]
        stack.enter_context(started([*again, "node", str(node), "-", "-"], rest, folder))
        pids, loads = {}, {}
        try:
            for side in sides:
                port = free_port()
                command = [*again, side, str(port), str(certificate.certificate), str(certificate.key)]
                if side.startswith("proxy"):
                    command = _proxy(folder / side, port, node, certificate, side.endswith("qh3"))
                pids[side] = stack.enter_context(started(command, own, folder))
                url = f"https://127.0.0.1:{port}"
                wait(url, certificate.ca)
                loads[side] = Chats(url, certificate.ca, at_once)
        except RuntimeError:
            print((folder / "servers.log").read_text()[-2000:], file=sys.stderr)
            raise
        os.sched_setaffinity(0, rest)
        for number in range(rounds + 1):  # the first warms up
            for side in sides:
                before, start = cpu_s(pids[side]), time.perf_counter()
                loads[side].run(requests)
                took, spent = time.perf_counter() - start, cpu_s(pids[side]) - before
                if number:
                    found[side]["requests_per_s"].append(requests / took)
                    found[side]["cpu_us_per_request"].append(spent / requests * 1e6)
                    found[side]["busy"].append(spent / took)
    return found


def _proxy(folder: Path, port: int, node: int, own: DevCertificate, on_qh3: bool) -> list[str]:
    folder.mkdir()
    config = folder / "regions.yaml"
    one = f"kind: openai, url: 'http://127.0.0.1:{node}', models: [mock]"
    config.write_text(
        f"listen: {{https: '127.0.0.1:{port}', admin: '127.0.0.1:{free_port()}'}}\n"
        f"quic: {'qh3' if on_qh3 else 'aioquic'}\n"
        f"tls: {{certificate: '{own.certificate}', key: '{own.key}'}}\n"
        f"regions: {{here: {{nodes: [{', '.join([f'{{{one}}}'] * NODES)}]}}}}\n"
    )
    return [sys.executable, "-m", "edgeproxy", "serve", "--config", str(config), "--state", str(folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=4000, help="a side and round")
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=4, metavar=("SIDE", "PORT", "CERTIFICATE", "KEY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        import uvloop

        side, port, certificate, key = args.serve
        uvloop.run(serve(side, int(port), Path(certificate), Path(key)))
        return
    found = race(args.sides, args.rounds, args.requests, args.at_once)
    print("| | requests/s of a core | CPU us per request | requests/s | the core is busy | ratio |")
    print("|---|---|---|---|---|---|")
    least = statistics.median(found[args.sides[0]]["cpu_us_per_request"])
    for side, of_it in found.items():
        cost, rate, busy = (statistics.median(of_it[key]) for key in ("cpu_us_per_request", "requests_per_s", "busy"))
        print(f"| {side} | {1e6 / cost:.0f} | {cost:.0f} | {rate:.0f} | {busy:.2f} | {least / cost:.2f} |")
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": machine(), "at_once": args.at_once, "sides": found}, indent=1))


if __name__ == "__main__":
    main()
