#!/usr/bin/env python3
"""What it costs the proxy to be seen: the ledger's end, metrics, log line, decisions and history, on against off.

    .venv/bin/python scripts/bench/observability.py [--rounds 15] [--requests 2000]

One proxy process serves the small request of hot_path.py, 32 at a time over as many connections, from a mock node in a
process of its own; its observation is switched off and on again from round to round. Counted is the CPU of the proxy's
process, sockets and kernel included, so that the result is a share of its requests per second and core. `in process` is
the same without sockets (the `edge` cut of hot_path.py), where the difference drowns in less noise.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, cast

try:
    import pycurl
except ModuleNotFoundError:
    raise SystemExit("pycurl is missing: run ./scripts/install --dev") from None
from hot_path import ANSWER, BODY, KEY, answering, block, configuration, edge_cut, ready, run

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.gateway.account import Account
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.observe.log import Log
from edgeproxy.routing.choose import Decision
from edgeproxy.upstream.node import Fleet
from edgeproxy.wire.h1 import H1Connection
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Service

AT_ONCE = 32
GC_THRESHOLDS = (20_000, 20, 50)
"""As the server sets them."""
_LENGTH = re.compile(rb"content-length: (\d+)")


class Observation:
    """Of this process, on or off. What failures count is left out: here nothing fails."""

    def __init__(self) -> None:
        self._close, self._noted = Account.close, Decision.noted

    def set(self, on: bool) -> None:
        patched = cast(Any, Account), cast(Any, Decision)
        patched[0].close = self._close if on else lambda account, call, now: None
        patched[1].noted = self._noted if on else lambda decision: None


@contextmanager
def built(url: str) -> Iterator[tuple[AsgiApp, Fleet]]:
    with TemporaryDirectory() as folder:
        config = configuration(Path(folder), url)
        fleet = Fleet.from_config(config, token="token")
        sink = os.open(os.devnull, os.O_WRONLY)
        app, *_ = build(config, fleet, Keys(config.keys), Log(sink), Random(1), started=0)
        yield app, fleet


class _Node(asyncio.Protocol):
    def __init__(self) -> None:
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if found and length is not None and len(body) >= int(length[1]):
            self._read = b""
            self._transport.write(ANSWER)


def node(pipe: Connection) -> None:
    run(_listen(_Node, pipe))


def proxy(url: str, pipe: Connection) -> None:
    with built(url) as (app, fleet):
        run(_proxy(app, fleet, pipe))


async def _proxy(app: AsgiApp, fleet: Fleet, pipe: Connection) -> None:
    ready(fleet)
    observation = Observation()

    def switch() -> None:
        observation.set(pipe.recv())
        pipe.send(None)

    asyncio.get_running_loop().add_reader(pipe.fileno(), switch)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    service = Service(app, Limits(), scheme="http", state={}, alt_svc=None)
    await _listen(lambda: H1Connection(service, lambda: None), pipe)


async def _listen(protocol: Callable[[], asyncio.Protocol], pipe: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


class Load:
    """`AT_ONCE` requests in flight, each followed by the next, on connections that stay."""

    def __init__(self, port: int) -> None:
        self._multi = pycurl.CurlMulti()
        self._idle = [_request(port) for _ in range(AT_ONCE)]

    def run(self, count: int) -> None:
        """Raises RuntimeError where one fails."""
        left, running = count, 0
        while left or running:
            while left and self._idle:
                self._multi.add_handle(self._idle.pop())
                left, running = left - 1, running + 1
            self._multi.perform()
            _, ended, failed = self._multi.info_read(AT_ONCE)
            if failed:
                raise RuntimeError(f"a request failed: {failed[0][2]}")
            for handle in ended:
                if handle.getinfo(pycurl.RESPONSE_CODE) != 200:
                    raise RuntimeError(f"a request was answered {handle.getinfo(pycurl.RESPONSE_CODE)}")
                self._multi.remove_handle(handle)
                self._idle.append(handle)
                running -= 1
            self._multi.select(0.1)


def _request(port: int) -> pycurl.Curl:
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, f"http://127.0.0.1:{port}/v1/chat/completions")
    handle.setopt(pycurl.HTTPHEADER, ["content-type: application/json", f"authorization: Bearer {KEY}", "expect:"])
    handle.setopt(pycurl.POSTFIELDS, BODY)
    handle.setopt(pycurl.WRITEFUNCTION, lambda data: None)
    return handle


def cpu_s(pid: int) -> float:
    """Of another process, all its threads: what clock_getcpuclockid(3) gives on Linux."""
    return time.clock_gettime((~pid << 3) | 2)


Pair = tuple[float, float]
"""Microseconds of CPU per request: on, off."""


def over_sockets(rounds: int, requests: int) -> list[Pair]:
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    processes = [spawn.Process(target=node, args=(theirs,), daemon=True)]
    processes[0].start()
    url = f"http://127.0.0.1:{mine.recv()}"
    processes.append(spawn.Process(target=proxy, args=(url, theirs), daemon=True))
    processes[1].start()
    pid = processes[1].pid
    assert pid is not None
    load = Load(mine.recv())

    def cost(on: bool) -> float:
        mine.send(on)
        mine.recv()
        begun = cpu_s(pid)
        load.run(requests)
        return (cpu_s(pid) - begun) / requests * 1e6

    try:
        load.run(requests)
        return [_pair(cost, first=bool(number % 2)) for number in range(rounds)]
    finally:
        for process in processes:
            process.kill()


async def in_process(rounds: int) -> list[Pair]:
    observation = Observation()
    with built("http://127.0.0.1:9") as (app, fleet):
        answering(fleet)
        once = edge_cut(app)
        await block(once)
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        found = []
        for number in range(rounds):
            costs = {}
            for on in (bool(number % 2), not number % 2):
                observation.set(on)
                costs[on] = await block(once)
            found.append((costs[True], costs[False]))
        observation.set(True)
        return found


def _pair(cost: Callable[[bool], float], *, first: bool) -> Pair:
    found = {on: cost(on) for on in (first, not first)}
    return found[True], found[False]


def told(name: str, pairs: list[Pair]) -> str:
    on, off = (statistics.median(values) for values in zip(*pairs, strict=True))
    shares = sorted(1 - without / with_ for with_, without in pairs)
    middle = statistics.median(shares)
    low, high = shares[len(shares) // 4], shares[-1 - len(shares) // 4]
    cells = (f"{on:.1f}", f"{off:.1f}", f"{1e6 / on:,.0f}", f"{1e6 / off:,.0f}", f"{middle:.1%}")
    return f"| {' | '.join((name, *cells, f'{low:.1%} to {high:.1%}'))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=2000, help="in a round over sockets")
    args = parser.parse_args()
    print("| | us on | us off | requests/s a core, on | off | cost | middle half of the rounds |")
    print("|---|---|---|---|---|---|---|")
    print(told("over sockets", over_sockets(args.rounds, args.requests)), flush=True)
    print(told("in process", run(in_process(4 * args.rounds))))


if __name__ == "__main__":
    main()
