"""A client that sends exactly the bytes it is given, and reads answers by the letter of RFC 9112."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from dataclasses import dataclass
from typing import Any

PATIENCE_S = 20.0
"""A wait longer than this is a hang; no property depends on it."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str | None:
        values = [value for key, value in self.headers if key == name]
        assert len(values) < 2, f"{name} is repeated"
        return values[0] if values else None

    def error(self) -> dict[str, Any]:
        """The error object of the OpenAI API, all four keys present."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        assert error.keys() >= {"message", "type", "param", "code"}
        assert error["message"]
        return error


class RawClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext | None = None) -> RawClient:
        name = "localhost" if context is not None else None
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            await self._writer.drain()

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.readexactly(size)

    async def read_head(self) -> tuple[int, list[tuple[str, str]]]:
        async with asyncio.timeout(PATIENCE_S):
            head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head[:-4].split(b"\r\n")
        version, status, _ = first.split(b" ", 2)
        assert version == b"HTTP/1.1"
        fields = [line.decode("ascii").split(": ", 1) for line in lines]
        return int(status), [(name, value) for name, value in fields]

    async def read_chunk(self) -> bytes:
        """One chunk's data; empty for the last chunk."""
        async with asyncio.timeout(PATIENCE_S):
            size = int((await self._reader.readuntil(b"\r\n"))[:-2], 16)
            data = await self._reader.readexactly(size + 2)
        assert data[size:] == b"\r\n"
        return data[:size]

    async def answer(self, *, to_head: bool = False) -> Answer:
        """One final response. Raises IncompleteReadError or ConnectionError if it is cut."""
        status, headers = await self.read_head()
        fields = dict(headers)
        if to_head or status in (204, 304):
            return Answer(status, headers, b"")
        if "content-length" in fields:
            assert "transfer-encoding" not in fields
            return Answer(status, headers, await self.read(int(fields["content-length"])))
        if fields.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := await self.read_chunk():
                body += chunk
            return Answer(status, headers, body)
        assert fields.get("connection") == "close"
        return Answer(status, headers, await self.rest())

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._reader.read()

    async def closed(self) -> bool:
        """The server ends the connection without another byte, cleanly or by reset."""
        try:
            return await self.rest() == b""
        except ConnectionError:
            return True

    def half_close(self) -> None:
        self._writer.write_eof()

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def reset(self) -> None:
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.transport.abort()
