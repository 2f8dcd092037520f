"""Small ASGI applications for the listeners' tests."""

from __future__ import annotations

import asyncio

from edgeproxy.wire.ingress import Scope, ingress
from edgeproxy.wire.service import Message, Receive, Send

OK: Message = {"type": "http.response.start", "status": 200, "headers": []}
END: Message = {"type": "http.response.body"}


def piece(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}


async def read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ConnectionError("the client left before its request ended")
        body += message["body"]
        if not message["more_body"]:
            return bytes(body)


async def answer(send: Send, body: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Method, path and body, so that answers cannot be mistaken for one another."""
    body = await read_body(receive)
    await answer(send, scope["method"].encode() + b" " + scope["raw_path"] + b" " + body)


class Watcher:
    """Waits (or streams) until its client is gone, and tells how it learnt that."""

    def __init__(self, *, streams: bool = False) -> None:
        self.streams = streams
        self.running = asyncio.Event()
        self.told = asyncio.Event()
        self.disconnected = asyncio.Event()
        self.send_raised = asyncio.Event()
        self.calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        known = ingress(scope)
        assert known is not None
        assert known.task is asyncio.current_task()
        known.on_gone = self.told.set
        await read_body(receive)
        if self.streams:
            await send(OK)
            await send(piece(b"first"))
        self.running.set()
        message = await receive()
        assert message["type"] == "http.disconnect"
        assert known.gone
        assert self.told.is_set(), "on_gone comes first"
        self.disconnected.set()
        try:
            await send(piece(b"more") if self.streams else OK)
        except OSError:
            self.send_raised.set()
            raise
