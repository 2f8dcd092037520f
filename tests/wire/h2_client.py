"""An HTTP/2 client on the sans-I/O `h2`: raw enough to misbehave, whole enough to read answers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    InformationalResponseReceived,
    PingReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
)
from h2.settings import SettingCodes
from hyperframe.frame import Frame, GoAwayFrame

from tests.wire.raw import PATIENCE_S


@dataclass
class Reply:
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    informational: list[str] = field(default_factory=list)
    ended: bool = False
    reset: ErrorCodes | None = None

    @property
    def status(self) -> int:
        return int(self.headers[":status"])

    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error.keys() >= {"message", "type", "param", "code"}
        return error


class H2Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, window: int | None) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.replies: dict[int, Reply] = {}
        self.goaways: list[tuple[ErrorCodes, int]] = []
        # h2 itself would end all streams at the first GOAWAY.
        self.h2._frame_dispatch_table[GoAwayFrame] = self._goaway
        self.pings = 0
        self.closed = False
        self.takes = True
        """Gives flow-control credit for what it reads."""
        self._reader = reader
        self._writer = writer
        self.h2.initiate_connection()
        if window is not None:
            self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None, window: int | None = None) -> H2Client:
        name = "localhost" if context is not None else None
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        client = cls(reader, writer, window)
        client.flush()
        return client

    def flush(self) -> None:
        self._writer.write(self.h2.data_to_send())

    def write(self, data: bytes) -> None:
        """Bytes as they are, behind what `h2` has to say."""
        self.flush()
        self._writer.write(data)

    def request(self, method: str = "GET", path: str = "/", *fields: tuple[str, str], end: bool = True) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":authority", "h"), (":path", path), *fields]
        self.h2.send_headers(stream_id, head, end_stream=end)
        self.replies[stream_id] = Reply()
        self.flush()
        return stream_id

    async def send(self, stream_id: int, data: bytes, *, end: bool = True) -> None:
        """As the server's windows allow. Raises ConnectionError where the stream or the connection ends first."""
        while data:
            if self.replies[stream_id].reset is not None or self.closed:
                raise ConnectionError
            room = min(self.h2.local_flow_control_window(stream_id), self.h2.max_outbound_frame_size)
            if room <= 0:
                await self.step()
                continue
            self.h2.send_data(stream_id, data[:room])
            data = data[room:]
            self.flush()
        if end:
            self.h2.end_stream(stream_id)
            self.flush()

    async def step(self) -> None:
        """Takes one read from the network."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                data = await self._reader.read(65536)
            except ConnectionError:
                data = b""
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            self._handle(event)
        self.flush()

    def _goaway(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        self.goaways.append((ErrorCodes(frame.error_code), frame.last_stream_id))
        return [], []

    def _handle(self, event: object) -> None:
        if isinstance(event, PingReceived):
            self.pings += 1
        elif isinstance(event, InformationalResponseReceived):
            self.replies[event.stream_id].informational.append(_text(event.headers)[":status"])
        elif isinstance(event, ResponseReceived):
            self.replies[event.stream_id].headers = _text(event.headers)
        elif isinstance(event, DataReceived):
            self.replies[event.stream_id].body += event.data
            if self.takes:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.replies[event.stream_id].ended = True
        elif isinstance(event, StreamReset):
            self.replies[event.stream_id].reset = ErrorCodes(event.error_code)

    async def answer(self, stream_id: int) -> Reply:
        """The whole response, or what there was of it before a reset. Raises ConnectionError on a close."""
        reply = self.replies[stream_id]
        while not (reply.ended or reply.reset is not None):
            if self.closed:
                raise ConnectionError
            await self.step()
        return reply

    async def get(self, path: str = "/") -> Reply:
        return await self.answer(self.request(path=path))

    async def until_closed(self) -> None:
        while not self.closed:
            await self.step()

    def reset(self, stream_id: int) -> None:
        self.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        self.flush()

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._writer.transport.abort()


def _text(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields}
