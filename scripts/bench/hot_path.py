#!/usr/bin/env python3
"""What the proxy itself costs per request, in one process and without a network: microseconds of CPU.

    .venv/bin/python scripts/bench/hot_path.py [--json] [--blocks 40] [--cold] [--profile gateway]

A small request that is not streamed, a key out of 100, 12 nodes in 3 regions, metrics and the JSON log on. Two cuts:

- `gateway`: the ASGI call. Admit, route, relay, account and log; bytes to and from the node included, its socket not.
- `edge`: the same from the bytes of a client's HTTP/1.1 request to the bytes of its answer; only sockets are left out.

Both stand for a request alone; the event loop's turns, which many requests at once would share, are counted in full.
Each number is the median over blocks of 500 requests, `best` the smallest block: the one that other work on the machine
disturbed least. `--cold`: before each request something else uses the core's caches (8 MiB are read), as it is where
requests are few and the machine has other work: what is added to the latency of one request, not to the cost of many.
`--profile CUT` prints the functions in which the time of one cut goes instead (cProfile).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import hashlib
import json
import os
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.config import Address, Config, Listen, NodeConfig, RegionConfig, Tls
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.observe.log import Log
from edgeproxy.upstream.connection import Connection
from edgeproxy.upstream.node import Fleet
from edgeproxy.upstream.response import ResponseLimits
from edgeproxy.wire.h1 import H1Connection
from edgeproxy.wire.ingress import SCOPE_KEY, Ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Service

BLOCK = 500
COLD_BYTES = 8 << 20
REGIONS, NODES, KEYS = 3, 4, 100
MODEL = "mock"
KEY = "ek_50"
BODY = json.dumps(
    {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant that gives short replies."},
            {"role": "user", "content": "Say in sixty words how a fox and a dog may come to be friends by a river."},
        ],
        "max_tokens": 64,
        "temperature": 0.7,
    }
).encode()


def fields(body: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"host", b"127.0.0.1:8080"),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json"),
        (b"user-agent", b"hot-path/1"),
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"content-length", b"%d" % len(body)),
    ]


def request(body: bytes) -> bytes:
    """As a client sends it."""
    head = b"".join([b"%b: %b\r\n" % (name.title(), value) for name, value in fields(body)])
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + head + b"\r\n" + body


FIELDS = fields(BODY)
REQUEST = request(BODY)
COMPLETION = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": MODEL,
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "word " * 60}, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 57, "completion_tokens": 64, "total_tokens": 121},
    }
).encode()
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    b"server-timing: parse;dur=0.40, queue;dur=0.10, prefill;dur=9.20, first;dur=6.10\r\n"
    b"content-length: %d\r\n\r\n" % len(COMPLETION)
) + COMPLETION


class Wire(asyncio.Transport):
    """A transport without a socket: what is written is given to `taken`."""

    def __init__(self, taken: Callable[[bytes], None]) -> None:
        super().__init__({"peername": ("192.0.2.1", 50000), "sockname": ("127.0.0.1", 8080)})
        self._taken = taken

    def write(self, data: Any) -> None:
        self._taken(data)

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


def configuration(folder: Path, url: str = "http://127.0.0.1:9") -> Config:
    """`url`: of every node."""
    lines = [
        f"  - {{tenant: tenant-{n}, sha256: {hashlib.sha256(b'ek_%d' % n).hexdigest()}, disclose: {n == 0}}}"
        for n in range(KEYS)
    ]
    keys = folder / "keys.yaml"
    keys.write_text("keys:\n" + "\n".join(lines) + "\n")
    regions = tuple(
        RegionConfig(
            f"region-{region}",
            tuple(NodeConfig(f"node-{region}-{node}", "openai", url, (MODEL,)) for node in range(NODES)),
        )
        for region in range(REGIONS)
    )
    listen = Listen(Address("127.0.0.1", 8080), None, None)
    return Config(Path("regions.yaml"), listen, Tls(None, None), regions, keys=keys)


def ready(fleet: Fleet) -> None:
    """Every node is up, near or far by its region."""
    for index, node in enumerate(fleet.nodes):
        node.rtt.probe(0.005 + 0.04 * (index // NODES), time.monotonic())
        node.up(time.monotonic())
    fleet.measured(time.monotonic())


def answering(fleet: Fleet) -> None:
    """Every node is ready, and has a warm connection that answers in the next turn."""
    ready(fleet)
    loop = asyncio.get_running_loop()
    for node in fleet.nodes:
        connection = Connection(node.name, ResponseLimits(), node.pool)
        connection.connection_made(
            Wire(lambda _, connection=connection: loop.call_soon(connection.data_received, ANSWER))  # type: ignore[misc]
        )
        node.pool.released(connection)


def gateway_cut(app: AsgiApp) -> Callable[[], Awaitable[None]]:
    task = asyncio.current_task()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: Any) -> None: ...

    async def once() -> None:
        known = Ingress("h1", time.monotonic(), lambda: 0.02)
        known.task = task
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "headers": FIELDS,
            "client": ("192.0.2.1", 50000),
            "extensions": {SCOPE_KEY: known},
        }
        await app(scope, receive, send)

    return once


def edge_cut(app: AsgiApp) -> Callable[[], Awaitable[None]]:
    loop = asyncio.get_running_loop()
    connection = H1Connection(Service(app, Limits(), scheme="http", state={}, alt_svc=None), lambda: None)
    answered = loop.create_future()

    def taken(data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200") or not data.endswith(COMPLETION):
            raise AssertionError(f"the answer is not the node's: {data[:200]!r}")
        answered.set_result(None)

    connection.connection_made(Wire(taken))

    async def once() -> None:
        nonlocal answered
        answered = loop.create_future()
        connection.data_received(REQUEST)
        await answered

    return once


CUTS = {"gateway": gateway_cut, "edge": edge_cut}


async def block(once: Callable[[], Awaitable[None]], count: int = BLOCK) -> float:
    """Microseconds of CPU per request."""
    start = time.process_time()
    for _ in range(count):
        await once()
    return (time.process_time() - start) / count * 1e6


async def cold_block(once: Callable[[], Awaitable[None]], count: int = BLOCK // 10) -> float:
    """Microseconds of CPU per request that finds nothing of itself in the caches: the median."""
    elsewhere = bytes(COLD_BYTES)
    spent = []
    for _ in range(count):
        elsewhere.count(1)
        start = time.process_time()
        await once()
        spent.append(time.process_time() - start)
    return statistics.median(spent) * 1e6


async def measure(blocks: int, profile: str | None, cold: bool) -> dict[str, dict[str, float]]:
    with TemporaryDirectory() as folder:
        config = configuration(Path(folder))
        fleet = Fleet.from_config(config, token="token")
        sink = os.open(os.devnull, os.O_WRONLY)
        app, *_ = build(config, fleet, Keys(config.keys), Log(sink), Random(1), started=0)
        answering(fleet)
        cuts = {name: make(app) for name, make in CUTS.items()}
        for once in cuts.values():
            await block(once)
        gc.collect()
        gc.freeze()
        if profile is not None:
            profiler = cProfile.Profile()
            profiler.enable()
            await block(cuts[profile], 10 * BLOCK)
            profiler.disable()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(45)
        found: dict[str, list[float]] = {name: [] for name in cuts}
        for _ in range(blocks):
            for name, once in cuts.items():  # in turn, so that a slow moment of the machine meets both
                found[name].append(await (cold_block if cold else block)(once))
        return {name: {"median": statistics.median(times), "best": min(times)} for name, times in found.items()}


def run(work: Awaitable[Any]) -> Any:
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--profile", choices=CUTS, help="print where the time goes instead")
    parser.add_argument("--cold", action="store_true", help="before each request, let something else use the caches")
    args = parser.parse_args()
    found = run(measure(1 if args.profile else args.blocks, args.profile, args.cold))
    if args.json:
        print(json.dumps({"unit": "us_cpu_per_request", "block": BLOCK, "blocks": args.blocks, "cuts": found}))
    elif not args.profile:
        for name, values in found.items():
            print(f"{name:8} median {values['median']:6.1f} us   best {values['best']:6.1f} us")


if __name__ == "__main__":
    main()
