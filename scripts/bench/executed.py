#!/usr/bin/env python3
"""What the interpreter executes for one request: bytecodes and calls of Python functions, by module or by function.

    .venv/bin/python scripts/bench/executed.py [--json] [--stream] [--alone] [--by function] [--top 40]

Counted, not timed: the same code gives the same figures on a busy machine as on a quiet one, but for the last per cent
(which node is drawn, how many log lines a batch has). Everything of `hot_path.py`'s `edge` cut is in it, from the bytes
of a client's request to the bytes of its answer, for 32 requests at a time (`--alone`: one after the other). `--stream`
counts a stream, and prints what each further event of it takes apart from what the request does.

A call is a Python function, coroutine or generator that is begun; a coroutine that goes on counts its bytecodes only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, NamedTuple

from hot_path import ANSWER, BODY, COMPLETION, Wire, configuration, ready, request, run

from edgeproxy.access.keys import Keys
from edgeproxy.app import build
from edgeproxy.gateway.app import AsgiApp
from edgeproxy.observe.log import Log
from edgeproxy.upstream.connection import Connection
from edgeproxy.upstream.node import Fleet
from edgeproxy.upstream.response import ResponseLimits
from edgeproxy.wire.h1 import H1Connection
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Service

AT_ONCE = 32
ROUNDS = 10
EVENTS = 16
_STREAMED = json.dumps(json.loads(BODY) | {"stream": True}).encode()
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"mock","choices":[%b]}\n\n'
_WORD = _CHUNK % b'{"index":0,"delta":{"content":"word "},"finish_reason":null}'
_LAST = _CHUNK % b'{"index":0,"delta":{},"finish_reason":"stop"}' + b"data: [DONE]\n\n"


class Counts(NamedTuple):
    bytecodes: Counter[CodeType]
    calls: Counter[CodeType]


class Counting:
    """A context in which this thread's bytecodes and calls are counted, this file's own left out."""

    def __init__(self) -> None:
        self.found = Counts(Counter(), Counter())

    def __enter__(self) -> Counts:
        sys.settrace(self._called)
        return self.found

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, event: str, argument: object) -> Callable[[FrameType, str, object], Any] | None:
        code = frame.f_code
        if code.co_filename == __file__:
            return None
        if not code.co_code[frame.f_lasti + 1] & 3:  # RESUME's argument: 0 at a function's start
            self.found.calls[code] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._executed

    def _executed(self, frame: FrameType, event: str, argument: object) -> Callable[[FrameType, str, object], Any]:
        if event == "opcode":
            self.found.bytecodes[frame.f_code] += 1
        return self._executed


def answers(events: int | None) -> list[bytes]:
    """What a node sends, read by read. `events`: of a stream; None: one whole answer."""
    if events is None:
        return [ANSWER]
    framed = [b"%x\r\n%b\r\n" % (len(event), event) for event in [*[_WORD] * events, _LAST]]
    return [_HEAD, *framed[:-1], framed[-1] + b"0\r\n\r\n"]


def answering(fleet: Fleet, pieces: list[bytes]) -> None:
    """Every node has a warm connection for each request, and sends one piece a turn of the loop."""
    ready(fleet)
    loop = asyncio.get_running_loop()

    def send(connection: Connection, left: list[bytes]) -> None:
        connection.data_received(left[0])
        if left[1:]:
            loop.call_soon(send, connection, left[1:])

    for node in fleet.nodes:
        for _ in range(AT_ONCE):
            connection = Connection(node.name, ResponseLimits(), node.pool)
            connection.connection_made(
                Wire(lambda _, connection=connection: loop.call_soon(send, connection, pieces))  # type: ignore[misc]
            )
            node.pool.released(connection)


class Client:
    """A connection and its request."""

    def __init__(self, service: Service, body: bytes, end: bytes) -> None:
        self._request = request(body)
        self._end = end
        self._answered: asyncio.Future[None]
        self._connection = H1Connection(service, lambda: None)
        self._connection.connection_made(Wire(self._taken))

    def ask(self) -> Awaitable[None]:
        self._answered = asyncio.get_running_loop().create_future()
        self._connection.data_received(self._request)
        return self._answered

    def _taken(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            raise AssertionError(f"the answer is not the node's: {data[:200]!r}")
        if data.endswith(self._end):
            self._answered.set_result(None)


async def together(clients: list[Client], rounds: int) -> None:
    for _ in range(rounds):
        for answered in [client.ask() for client in clients]:
            await answered


async def alone(clients: list[Client], rounds: int) -> None:
    for _ in range(rounds):
        for client in clients:
            await client.ask()


async def counted(events: int | None, ask: Callable[[list[Client], int], Awaitable[None]]) -> Counts:
    with TemporaryDirectory() as folder:
        config = configuration(Path(folder))
        fleet = Fleet.from_config(config, token="token")
        sink = os.open(os.devnull, os.O_WRONLY)
        log = Log(sink)
        app: AsgiApp
        app, *_ = build(config, fleet, Keys(config.keys), log, Random(1), started=0)
        answering(fleet, answers(events))
        service = Service(app, Limits(), scheme="http", state={}, alt_svc=None)
        body, end = (BODY, COMPLETION) if events is None else (_STREAMED, b"0\r\n\r\n")
        clients = [Client(service, body, end) for _ in range(AT_ONCE)]
        await ask(clients, ROUNDS)
        log.flush()
        gc.collect()
        gc.disable()  # what it finalises is nobody's request
        with Counting() as found:
            await ask(clients, ROUNDS)
            log.flush()
        gc.enable()
        return found


def per_request(found: Counter[CodeType], name: Callable[[CodeType], str]) -> Counter[str]:
    summed: Counter[str] = Counter()
    for code, count in found.items():
        summed[name(code)] += count
    return Counter({key: count / (ROUNDS * AT_ONCE) for key, count in summed.items()})  # type: ignore[arg-type]


def module(code: CodeType) -> str:
    path = Path(code.co_filename)
    parts = path.with_suffix("").parts
    return "/".join(parts[parts.index("edgeproxy") :] if "edgeproxy" in parts else parts[-2:])


def function(code: CodeType) -> str:
    return f"{module(code)}.{code.co_qualname}"


def table(counts: Counts, name: Callable[[CodeType], str], top: int) -> None:
    bytecodes, calls = per_request(counts.bytecodes, name), per_request(counts.calls, name)
    total = bytecodes.total()
    print(f"{'bytecodes':>10} {'share':>6} {'calls':>7}")
    for key, count in bytecodes.most_common(top):
        print(f"{count:10.1f} {count / total:6.1%} {calls[key]:7.2f}  {key}")


def totals(counts: Counts) -> tuple[float, float]:
    requests = ROUNDS * AT_ONCE
    return counts.bytecodes.total() / requests, counts.calls.total() / requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--stream", action="store_true", help="a stream instead of a whole answer")
    parser.add_argument("--alone", action="store_true", help="one request at a time")
    parser.add_argument("--by", choices=("module", "function"), default="module")
    parser.add_argument("--top", type=int, default=40, help="lines of the table")
    args = parser.parse_args()
    ask = alone if args.alone else together
    counts = run(counted(EVENTS if args.stream else None, ask))
    bytecodes, calls = totals(counts)
    found = {"bytecodes": round(bytecodes), "calls": round(calls, 1)}
    if args.stream:
        more, longer = totals(run(counted(2 * EVENTS, ask)))
        found |= {
            "bytecodes_per_event": round((more - bytecodes) / EVENTS),
            "calls_per_event": round((longer - calls) / EVENTS, 1),
        }
    if args.json:
        print(json.dumps({"unit": "per_request", "at_once": 1 if args.alone else AT_ONCE, **found}))
        return
    table(counts, function if args.by == "function" else module, args.top)
    print("  ".join(f"{name} {value:,}" for name, value in found.items()))


if __name__ == "__main__":
    main()
