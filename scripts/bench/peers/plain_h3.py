"""HTTP/3 as aioquic's own example serves it: its server and its HTTP/3 around an ASGI application, and nothing else.

No limits, no backpressure, no word to the application when its client leaves. Written anew after the shape of the
library's `examples/http3_server.py`, as a measure for what our wire adds and saves: as it is there, with datagrams
after each `send`, and with what is easily had of it, datagrams once a turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol
from aioquic.asyncio import serve as aioquic_serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, QuicEvent

App = Callable[[Any, Any, Any], Awaitable[None]]


class Request:
    def __init__(self, protocol: Plain, headers: list[tuple[bytes, bytes]], stream_id: int) -> None:
        fields = dict(headers)
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.scope = {
            "type": "http",
            "http_version": "3",
            "method": fields[b":method"].decode(),
            "path": fields[b":path"].decode(),
            "headers": [(name, value) for name, value in headers if not name.startswith(b":")],
        }
        self._protocol = protocol
        self._stream_id = stream_id

    async def run(self, app: App) -> None:
        await app(self.scope, self.queue.get, self.send)

    async def send(self, message: dict[str, Any]) -> None:
        http = self._protocol.http
        if message["type"] == "http.response.start":
            status = str(message["status"]).encode()
            http.send_headers(self._stream_id, [(b":status", status), (b"server", b"aioquic"), *message["headers"]])
        else:
            http.send_data(self._stream_id, message.get("body", b""), not message.get("more_body", False))
        self._protocol.sent()


class Plain(QuicConnectionProtocol):
    http: H3Connection

    def __init__(self, app: App, once_a_turn: bool, *roles: Any, **options: Any) -> None:
        super().__init__(*roles, **options)
        self._app = app
        self._tasks: set[asyncio.Future[None]] = set()
        self._once_a_turn = once_a_turn
        self._due = False
        self._requests: dict[int, Request] = {}

    def sent(self) -> None:
        if not self._once_a_turn:
            self.transmit()
        elif not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        self.transmit()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ProtocolNegotiated):
            self.http = H3Connection(self._quic)
        elif hasattr(self, "http"):
            for message in self.http.handle_event(event):
                self._message(message)

    def _message(self, message: H3Event) -> None:
        if isinstance(message, HeadersReceived) and message.stream_id not in self._requests:
            request = self._requests[message.stream_id] = Request(self, message.headers, message.stream_id)
            task = asyncio.ensure_future(request.run(self._app))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if not message.stream_ended:
                return
            data = b""
        elif isinstance(message, DataReceived):
            data = message.data
        else:
            return
        ended = message.stream_ended
        self._requests[message.stream_id].queue.put_nowait(
            {"type": "http.request", "body": data, "more_body": not ended}
        )
        if ended:
            del self._requests[message.stream_id]


async def serve(app: App, port: int, certificate: Path, key: Path, *, once_a_turn: bool) -> None:
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(certificate, key)
    await aioquic_serve(
        "127.0.0.1",
        port,
        configuration=configuration,
        create_protocol=lambda *roles, **options: Plain(app, once_a_turn, *roles, **options),
    )
