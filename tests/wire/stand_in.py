"""A transport without a socket, for tests that call a connection's methods themselves."""

from __future__ import annotations

import asyncio
from typing import Any


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.written = b""
        self.closed = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: Any) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close
