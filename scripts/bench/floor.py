#!/usr/bin/env python3
"""A relay that does less than the proxy: what of the cost of a request is Python's and the kernel's, and what is ours.

    .venv/bin/python scripts/bench/floor.py raw|wire [--port 8362] [--node 19001]

To be raced like any other proxy (`proxy_race.py --us 8362 --us-pid PID`), in front of the same node:

- `raw`: two asyncio protocols with httptools and one look at the JSON. Bytes are handed on as they came; nothing is
  checked, limited, chosen, counted or logged.
- `wire`: our own listener and our own pool of connections with nothing between them but that look.

What `wire` costs more than `raw` is strictness: limits, deadlines, framing, cancellation. What the proxy costs more
than `wire` is the gateway: keys, choice, failover, ledger, metrics, log.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
from typing import cast

import httptools
import orjson
import uvloop

from edgeproxy.config import Address
from edgeproxy.protocol.openai.headers import to_client
from edgeproxy.upstream.h1 import Pool
from edgeproxy.upstream.origin import Origin
from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tcp import TcpListener


class RawNode(asyncio.Protocol):
    """One connection to the node; answers go to whoever has it."""

    def __init__(self, idle: list[RawNode]) -> None:
        self.client: RawClient | None = None
        self.transport: asyncio.Transport
        self._idle = idle
        self._parser = httptools.HttpResponseParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        client = self.client
        self._parser.feed_data(data)
        if client is not None:
            client.transport.write(data)

    def on_message_complete(self) -> None:
        self._idle.append(self)


class RawClient(asyncio.Protocol):
    def __init__(self, node: int, idle: list[RawNode]) -> None:
        self.transport: asyncio.Transport
        self._node = node
        self._idle = idle
        self._parser = httptools.HttpRequestParser(self)
        self._bytes = b""
        self._body = b""
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        orjson.loads(self._body)
        message, self._bytes, self._body = self._bytes, b"", b""
        if self._idle:
            self._hand_on(self._idle.pop(), message)
        else:
            self._opening = asyncio.get_running_loop().create_task(self._open(message))

    async def _open(self, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, node = await loop.create_connection(lambda: RawNode(self._idle), "127.0.0.1", self._node)
        self._hand_on(node, message)

    def _hand_on(self, node: RawNode, message: bytes) -> None:
        node.client = self
        node.transport.write(message)


async def raw(port: int, node: int) -> None:
    idle: list[RawNode] = []
    server = await asyncio.get_running_loop().create_server(lambda: RawClient(node, idle), "127.0.0.1", port)
    async with server:
        await _signal()


async def wire(port: int, node: int) -> None:
    pool = Pool(Origin("http", "127.0.0.1", node))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]  # in one piece, as small requests come
        orjson.loads(body)
        target, fields = scope["raw_path"], [(b"content-type", b"application/json")]
        response = await pool.request(scope["method"].encode(), target, fields, body)
        await send({"type": "http.response.start", "status": response.status, "headers": to_client(response.headers)})
        while data := await response.read():
            await send({"type": "http.response.body", "body": data, "more_body": not response.complete})
            if response.complete:
                return
        await send({"type": "http.response.body", "body": b""})

    listener = TcpListener(app, Limits(), ssl=None, alt_svc=lambda: None, state={})
    await listener.start(Address("127.0.0.1", port))
    try:
        await _signal()
    finally:
        listener.close()
        pool.close()


async def _signal() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cut", choices=("raw", "wire"))
    parser.add_argument("--port", type=int, default=8362)
    parser.add_argument("--node", type=int, default=19001)
    args = parser.parse_args()
    print(f"pid {os.getpid()}, port {args.port}", flush=True)
    cut = {"raw": raw, "wire": wire}[args.cut]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(functools.partial(cut, args.port, args.node)())


if __name__ == "__main__":
    main()
