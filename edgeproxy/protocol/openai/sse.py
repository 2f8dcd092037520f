"""Server-sent events (WHATWG HTML, section 9.2), for relays and clients: bytes in any chunking, events out.

A relay writes `event.raw` on and looks at `event.data`: the raws of all events, and the parser's `tail`, joined are
exactly the bytes that were fed, and they are the same however the bytes were cut.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

MEDIA_TYPE = b"text/event-stream"
DONE = b"[DONE]"
MAX_EVENT_BYTES = 1 << 20

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_CR = 0x0D


class SseError(ValueError):
    """An event grew past the limit."""


class Event(NamedTuple):
    data: bytes
    """The values of the event's `data` fields, joined by LF."""
    raw: bytes
    """The bytes as they came, with their line ends."""
    comment: bool = False
    """Nothing to dispatch: one comment line (`raw` starts with a colon), an empty line, or fields without `data`."""


_event = tuple.__new__
"""Makes an Event of a tuple, without the call of Python that its own constructor is: there is one for each token."""


class SseParser:
    """Splits a stream into events. A comment line between events is an event of its own, out as soon as its line ends.

    Raises SseError from `feed` when an event is longer than `limit` bytes; the parser is of no use afterwards.
    """

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()
        self._scanned = 0
        """Offset in `_pending` where the first unfinished line starts."""
        self._data: list[bytes] = []
        self._lone_cr = False
        """The event's last line ended with CR alone, so that a CR now is a whole line end: nothing to wait for."""
        self._first_line = True

    @property
    def tail(self) -> bytes:
        """Bytes of an event that has not ended. By the standard it is to be dropped where the stream ends."""
        return bytes(self._pending)

    def feed(self, chunk: bytes) -> list[Event]:
        if self._pending or self._first_line or b"\r" in chunk or not chunk.endswith(b"\n\n"):
            return self._feed(chunk)
        events: list[Event] = []
        for block in chunk[:-2].split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block and len(block) + 2 <= self._limit:
                events.append(_event(Event, (block[6:], block + b"\n\n", False)))
                continue
            comment, rest = b"", block
            if block.startswith(b":") and len(block) < self._limit:  # as native nodes do, before each event
                comment, _, rest = block.partition(b"\n")
            if rest.startswith(b"data: ") and b"\n" not in rest and len(rest) + 2 <= self._limit:
                if comment:
                    events.append(Event(b"", comment + b"\n", comment=True))
                events.append(Event(rest[6:], rest + b"\n\n"))
            else:
                events += self._feed(block + b"\n\n")
        return events

    def _feed(self, chunk: bytes) -> list[Event]:
        self._pending += chunk
        events: list[Event] = []
        while found := _LINE_END.search(self._pending, self._scanned):
            start, end = found.span()
            if self._lone_cr and start == self._scanned and self._pending[start] == _CR:
                end = start + 1  # lines of this stream end with CR: an LF that follows belongs to the next event
            elif self._pending[start] == _CR and end == len(self._pending) == start + 1:
                break  # an LF may follow that belongs to this line end
            self._lone_cr = self._pending[start:end] == b"\r"
            if event := self._line(bytes(self._pending[self._scanned : start]), end):
                events.append(event)
        if len(self._pending) > self._limit:
            raise SseError(f"an event of the stream is longer than {self._limit} bytes")
        return events

    def _line(self, line: bytes, end: int) -> Event | None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        between = self._scanned == 0
        self._scanned = end
        if not line or (between and line.startswith(b":")):
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None

    def _dispatch(self) -> Event:
        if self._scanned > self._limit:
            raise SseError(f"an event of the stream is longer than {self._limit} bytes")
        event = Event(b"\n".join(self._data), bytes(self._pending[: self._scanned]), comment=not self._data)
        del self._pending[: self._scanned]
        self._scanned = 0
        self._data = []
        return event


def encode(data: bytes) -> bytes:
    """One event. `data` holds no line end, as JSON does not."""
    return b"data: " + data + b"\n\n"


def encode_comment(text: bytes) -> bytes:
    """A line that readers skip. One line end only: some readers take an empty line for an empty event."""
    return b": " + text + b"\n"


def has_content(chunk: object) -> bool:
    """Whether a parsed chat or completion chunk holds something to show: text, a tool call, the finish or an error.

    A chunk that only opens the message (`role`, empty content) or only counts (`usage`) does not.
    """
    if not isinstance(chunk, dict):
        return False
    if chunk.get("error"):
        return True
    choices = chunk.get("choices")
    return isinstance(choices, list) and any(_choice_has_content(choice) for choice in choices)


_SHOWN = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "audio")


def _choice_has_content(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    if choice.get("finish_reason") or choice.get("text"):
        return True
    delta = choice.get("delta")
    return isinstance(delta, dict) and any(delta.get(name) for name in _SHOWN)
