"""One JSON line per request, plain lines for people at start; never a prompt, a completion or a key.

Lines are gathered for some milliseconds and written at once, and only while the reader takes them: a terminal that
somebody has stopped, or a full pipe, costs log lines (counted), never a request.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import orjson

MAX_PENDING_BYTES = 1 << 20
LAST_WORDS_S = 2.0
"""At the end a slow reader is waited for, but not one that has stopped."""
_GATHER_S = 0.02
_PIECE_BYTES = select.PIPE_BUF
"""A pipe that polls as writable takes this much without blocking (pipe(7))."""


_line = partial(orjson.dumps, default=str, option=orjson.OPT_APPEND_NEWLINE)


class Log:
    """Writes to a file descriptor that it does not own."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._pending = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self._sources: list[Callable[[], None]] = []
        self._dropped = 0
        self.dropped_lines = 0

    def gather(self, source: Callable[[], None]) -> None:
        """From now on `source` is asked for its lines before any are written."""
        self._sources.append(source)

    def soon(self) -> None:
        """A source has lines: they are asked for with the others of this moment."""
        if self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._due)
            except RuntimeError:  # no loop yet, or no more
                self.flush()

    def record(self, fields: dict[str, Any]) -> None:
        """One JSON line. Values that JSON does not know are written as text."""
        self._append(_line(fields))

    def records(self, some: Iterable[dict[str, Any]]) -> None:
        """The same for several."""
        lines = list(map(_line, some))
        whole = b"".join(lines)
        if len(self._pending) + len(whole) <= MAX_PENDING_BYTES:
            lines = [whole]
        for line in lines:
            self._append(line)

    def say(self, text: str) -> None:
        """A line for people, written at once where the reader takes it."""
        self._append(text.encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Writes what the reader takes now."""
        for source in self._sources:
            source()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        written = 0
        while written < len(self._pending) and self._writable():
            try:
                written += os.write(self._fd, self._pending[written : written + _PIECE_BYTES])
            except OSError:
                written = len(self._pending)  # the reader is gone; there is nobody to tell
        del self._pending[:written]
        if not self._pending and self._dropped:
            lines, self._dropped = self._dropped, 0
            self.record({"event": "log_lines_dropped", "lines": lines})

    def finish(self, within_s: float = LAST_WORDS_S) -> None:
        """Writes all there is, as fast as the reader takes it; blocks as long as that takes, or `within_s`."""
        self.flush()
        end = time.monotonic() + within_s
        while self._pending and (left := end - time.monotonic()) > 0:
            self._poll.poll(1000 * left)
            self.flush()

    def _append(self, line: bytes) -> None:
        if len(self._pending) + len(line) > MAX_PENDING_BYTES:
            self._dropped += 1
            self.dropped_lines += 1
            return
        self._pending += line
        self.soon()

    def _due(self) -> None:
        self._timer = None
        self.flush()
        if self._pending:
            self.soon()

    def _writable(self) -> bool:
        return bool(self._poll.poll(0))
