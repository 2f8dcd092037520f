"""HTTP/1.1 responses as bytes: head, framing of the body, and the errors that the wire itself answers."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.service import Service
from edgeproxy.wire.wire_error import wire_error

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
_BREAKS = b"\r\n\0"
_OWN = frozenset(
    (b"connection", b"content-length", b"transfer-encoding", b"keep-alive", b"proxy-connection", b"date", b"alt-svc")
)
"""Header fields that need a closer look; the others are copied."""


@dataclass(slots=True)
class Framing:
    """How the end of one response body is told (RFC 9112 section 6.3)."""

    left: int | None
    """Bytes that the content-length still promises."""
    chunked: bool
    bodyless: bool
    """HEAD, 204, 304: the application's body is dropped."""
    close: bool
    """The connection ends with this response."""

    @property
    def until_close(self) -> bool:
        return self.left is None and not self.chunked and not self.bodyless

    def encode(self, body: bytes, more: bool) -> bytes:
        """The next piece of the body as it goes on the wire; ValueError where the content-length is not kept."""
        if self.bodyless:
            return b""
        if self.chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return data if more else data + LAST_CHUNK
        if self.left is not None:
            self.left -= len(body)
            if self.left < 0 or (self.left and not more):
                raise ValueError(f"response body is {abs(self.left)} bytes off its content-length header")
        return body


def encode_head(
    service: Service,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    whole: int | None,
    head_request: bool,
    http10: bool,
    close: bool,
) -> tuple[bytes, Framing]:
    """The status line and header section, and how the body is to be framed.

    `whole` is the length of the whole body where it is known already. Raises ValueError for a head that would not be
    read back as what the application meant (a line break in a field, two content lengths).
    """
    if not 200 <= status <= 999:
        raise ValueError(f"response status {status} is not a final one")
    lines = [_status_line(status)]
    length: int | None = None
    dated = False
    for name, value in headers:
        lower = name.lower()
        if lower in _OWN:
            if lower == b"content-length":
                if length is not None or not value.isdigit():
                    raise ValueError(f"response content-length {value!r} is repeated or no number")
                length = int(value)
                continue
            if lower == b"connection":
                close = close or b"close" in value.lower()
                continue
            if lower == b"date":
                dated = True
            elif lower != b"alt-svc":
                continue
        lines.append(lower + b": " + value)
    bodyless = head_request or status in (204, 304)
    chunked = False
    if length is None and not bodyless:
        length = whole
        if length is None:
            chunked = not http10
            close = close or http10
    elif length is None and whole:
        length = whole
    if length is not None and status != 204:
        lines.append(b"content-length: %d" % length)
    elif chunked:
        lines.append(b"transfer-encoding: chunked")
    if not dated:
        lines.append(b"date: " + service.date())
    if (alt_svc := service.alt_svc()) is not None:
        lines.append(b"alt-svc: " + alt_svc)
    if close:
        lines.append(b"connection: close")
    elif http10:
        lines.append(b"connection: keep-alive")
    breaks = 2 * (len(lines) + 1)
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    if len(head) - len(head.translate(None, _BREAKS)) != breaks:
        raise ValueError("a response header holds CR, LF or NUL; header values must be single lines")
    return head, Framing(length, chunked, bodyless, close)


def encode_error(
    service: Service, error: ApiError, *, head_request: bool = False, request_id: bytes | None = None
) -> bytes:
    """A complete answer of the wire itself, the last on its connection."""
    fields, body = wire_error(error, request_id)
    head, framing = encode_head(service, error.status, fields, len(body), head_request, False, True)
    return head + framing.encode(body, more=False)


@functools.lru_cache(maxsize=128)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b" % (status, phrase.encode())
