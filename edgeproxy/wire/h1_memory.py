"""The head of a connection's last request: a client that keeps its connection mostly sends the same one again."""

from __future__ import annotations

import re
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
_MOST_BYTES = 4096
"""Of a head that is kept, for each of thousands of connections."""
_MOST_DIGITS = 15
_TRIES = 8
"""Heads kept in a row of which none came again: this client's differ (a trace id), and it is not worth the while."""


class RequestHead(NamedTuple):
    """What a request's head says, less its header fields."""

    method: str
    raw_path: bytes
    query: bytes
    version: str
    """`1.0` or `1.1`."""
    keep_alive: bool
    expects_continue: bool


class Known(NamedTuple):
    before: bytes
    """From the request line to the digits of its content-length..."""
    behind: bytes
    """...and from there to the empty line."""
    head: RequestHead
    headers: Headers
    place: int
    """Of the content-length among the headers."""


class HeadMemory:
    """Heads that differ in the number of their content-length alone are read alike (RFC 9112 section 5), so one that
    the parser has found sound need not be parsed again. What is kept is one connection's own."""

    __slots__ = ("_known", "_most_body", "_most_bytes", "_tries")

    def __init__(self, head_bytes: int, body_bytes: int) -> None:
        """The limits of one head and, of what is told in one piece, of a body."""
        self._most_bytes = min(_MOST_BYTES, head_bytes - _MOST_DIGITS)
        self._most_body = body_bytes
        self._known: Known | None = None
        self._tries = _TRIES

    def recall(self, data: bytes) -> tuple[RequestHead, Headers, bytes] | None:
        """Head, header fields and body of a whole request, and nothing else, whose head is known; else None.
        `data`: what was read since the end of the request before."""
        if self._known is None:
            return None
        before, behind, head, known, place = self._known
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        if end < 0 or not data.startswith(behind, end):
            return None
        digits, body = data[start:end], data[end + len(behind) :]
        if not digits.isdigit() or not 0 < len(body) <= self._most_body or int(digits) != len(body):
            return None
        self._tries = _TRIES
        headers = known.copy()
        headers[place] = (b"content-length", digits)
        return head, headers, body

    def keep(self, raw: bytes, head: RequestHead, headers: Headers) -> None:
        """`raw`: a head as it was read, and parsed."""
        if not self._tries or not head.keep_alive or head.expects_continue or head.version != "1.1":
            return
        lines = len(headers) + 2
        if len(raw) > self._most_bytes or raw.count(b"\r") != lines or raw.count(b"\n") != lines:
            return  # there is more about it than fields of a line each
        found = _LENGTH.search(raw)
        if found is not None and raw.endswith(b"\r\n\r\n"):
            self._tries -= 1
            place = [name for name, _ in headers].index(b"content-length")
            self._known = Known(raw[: found.start(1)], raw[found.end(1) :], head, headers, place)
