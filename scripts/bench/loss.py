#!/usr/bin/env python3
"""First token over HTTP/1.1, HTTP/2 and HTTP/3 on a long and lossy way: in milliseconds, cold and warm.

    sudo .venv/bin/python scripts/bench/loss.py [--rtt-ms 80] [--loss 0,1,3] [--trials 30] [--out loss.json]

The proxy's listeners and a client (libcurl, the same for all three) stand in network namespaces of their own; between
them this process carries IP packets from one TUN device to the other, late, and loses some in either direction. So TCP
is the kernel's, with its own retransmissions. The application answers at once with a short stream. Cold: a new
connection, TLS included, no session resumed. Warm: the second request on it. Needs Linux, root and /dev/net/tun.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import json
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

try:
    import pycurl
except ModuleNotFoundError:
    raise SystemExit("pycurl is missing: run ./scripts/install --dev") from None

from edgeproxy.config import Address
from edgeproxy.wire.dispatch import PROTOCOLS
from edgeproxy.wire.h3_listener import QuicListener
from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tcp import TcpListener
from edgeproxy.wire.tls import DevCertificate, make_dev_certificate, server_context

SERVER, CLIENT, PORT = "10.199.0.1", "10.199.0.2", 8443
CLONE_NEWNET, TUNSETIFF, IFF_TUN_NO_PI = 0x4000_0000, 0x4004_54CA, 0x1001
VERSIONS = {"h1": pycurl.CURL_HTTP_VERSION_1_1, "h2": pycurl.CURL_HTTP_VERSION_2TLS, "h3": 31}
"""31: HTTP/3 and nothing else, which pycurl has no name for yet."""
EVENTS = 8
BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "word " * 100}]})


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(EVENTS):
        event = b'data: {"choices":[{"index":0,"delta":{"content":"token"}}]}\n\n'
        await send({"type": "http.response.body", "body": event, "more_body": True})
        await asyncio.sleep(0.01)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def serve(certificate: DevCertificate, control: socket.socket) -> None:
    """Says on `control` that the listeners are there."""
    files = certificate.certificate, certificate.key
    tcp = TcpListener(app, Limits(), ssl=server_context(*files, tuple(PROTOCOLS)), alt_svc=lambda: None, state={})
    quic = QuicListener(app, Limits(), certificate=files[0], key=files[1], state={})
    await tcp.start(Address(SERVER, PORT))
    await quic.start(Address(SERVER, PORT))
    control.sendall(b"l")
    await asyncio.Event().wait()


def first_token(curl: pycurl.Curl) -> float:
    """Seconds to the first octet of the body."""
    heard: list[float] = []
    curl.setopt(pycurl.WRITEFUNCTION, lambda data: heard.append(time.perf_counter()))
    start = time.perf_counter()
    curl.perform()
    return heard[0] - start


def request(version: int, ca: Path) -> pycurl.Curl:
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, f"https://localhost:{PORT}/v1/chat/completions")
    curl.setopt(pycurl.RESOLVE, [f"localhost:{PORT}:{SERVER}"])
    curl.setopt(pycurl.CAINFO, str(ca))
    curl.setopt(pycurl.HTTP_VERSION, version)
    curl.setopt(pycurl.POSTFIELDS, BODY)
    curl.setopt(pycurl.TIMEOUT, 60)
    curl.setopt(pycurl.SSL_SESSIONID_CACHE, 0)
    return curl


def ask(control: socket.socket, ca: Path, losses: list[float], trials: int) -> None:
    """All measurements; the protocols in turn, so that what the machine does meets all alike."""
    found: dict[str, dict[str, list[float]]] = {}
    for loss in losses:
        control.sendall(b"%f\n" % loss)
        times = found[f"{loss:g}"] = defaultdict(list)
        for _ in range(trials):
            for name, version in VERSIONS.items():
                curl = request(version, ca)
                times[f"{name} cold"].append(first_token(curl) * 1e3)
                times[f"{name} warm"].append(first_token(curl) * 1e3)
                curl.close()
    control.sendall(b"done " + json.dumps(found).encode() + b"\n")


def tun() -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", b"tun0", IFF_TUN_NO_PI))
    return device


def apart(address: str, control: socket.socket, work: Callable[[], None]) -> int:
    """A child in a network of its own, of which only the TUN device leads out; that is sent to the parent."""
    child = os.fork()
    if child:
        return child
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET):
            sys.exit(f"no network namespace: {os.strerror(ctypes.get_errno())}; run it as root")
        device = tun()
        for command in (f"addr add {address}/24 dev tun0", "link set tun0 up", "link set lo up"):
            subprocess.run(["ip", *command.split()], check=True)
        socket.send_fds(control, [b"t"], [device])
        os.close(device)
        work()
    finally:
        os._exit(0)


class Way:
    """Carries packets between two TUN devices."""

    def __init__(self, devices: tuple[int, int], one_way_s: float) -> None:
        self.loss = 0.0
        self._one_way_s = one_way_s
        self._rng = random.Random(1)
        self._loop = asyncio.get_running_loop()
        for near, far in (devices, devices[::-1]):
            self._loop.add_reader(near, self._carry, near, far)

    def _carry(self, near: int, far: int) -> None:
        packet = os.read(near, 65536)
        if self._rng.random() >= self.loss:
            self._loop.call_later(self._one_way_s, os.write, far, packet)


async def carry(devices: tuple[int, int], control: socket.socket, rtt_s: float) -> dict[str, dict[str, list[float]]]:
    """Until the client is done; it says what is to be lost."""
    way = Way(devices, rtt_s / 2)
    reader, _ = await asyncio.open_connection(sock=control)
    while line := (await reader.readuntil(b"\n")).decode():
        if line.startswith("done "):
            return dict(json.loads(line[5:]))
        way.loss = float(line) / 100
    raise AssertionError


def table(found: dict[str, dict[str, list[float]]]) -> None:
    print("| loss % | | h1 p50 | p95 | h2 p50 | p95 | h3 p50 | p95 |\n|---|---|---|---|---|---|---|---|")
    for loss, times in found.items():
        for state in ("cold", "warm"):
            cells = []
            for name in VERSIONS:
                values = sorted(times[f"{name} {state}"])
                cells += [f"{statistics.median(values):.0f}", f"{values[int(0.95 * (len(values) - 1))]:.0f}"]
            print(f"| {loss} | {state} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rtt-ms", type=float, default=80)
    parser.add_argument("--loss", default="0,1,3", help="percent of packets, in either direction")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    losses = [float(loss) for loss in args.loss.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        certificate = make_dev_certificate(Path(folder))
        at_server, server_end = socket.socketpair()
        at_client, client_end = socket.socketpair()
        server = apart(SERVER, server_end, lambda: asyncio.run(serve(certificate, server_end)))
        server_end.close()
        (device,) = socket.recv_fds(at_server, 1, 1)[1]
        if at_server.recv(1) != b"l":
            sys.exit("the listeners did not come up")
        client = apart(CLIENT, client_end, lambda: ask(client_end, certificate.ca, losses, args.trials))
        client_end.close()
        (other,) = socket.recv_fds(at_client, 1, 1)[1]
        try:
            found = asyncio.run(carry((device, other), at_client, args.rtt_ms / 1e3))
        finally:
            for child in (server, client):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
    table(found)
    if args.out is not None:
        args.out.write_text(json.dumps({"rtt_ms": args.rtt_ms, "trials": args.trials, "ms": found}))


if __name__ == "__main__":
    main()
