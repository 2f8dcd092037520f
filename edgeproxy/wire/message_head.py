"""Heads of HTTP/2 and HTTP/3 messages: requests checked and turned into an ASGI scope, responses cleaned.

RFC 9113 section 8 and RFC 9114 section 4 ask for the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple
from urllib.parse import unquote

Headers = list[tuple[bytes, bytes]]

_PSEUDO = frozenset((b":method", b":scheme", b":authority", b":path"))
_CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"transfer-encoding", b"upgrade")
)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_CONTROL = re.compile(rb"[\0\r\n]")
_PADDED = re.compile(rb"^[ \t]|[ \t]\Z")
_VALUE = itemgetter(1)
_USUAL = frozenset(
    (b"accept", b"accept-encoding", b"accept-language", b"authorization", b"content-length", b"content-type", b"host",
     b"origin", b"referer", b"user-agent", b"cache-control", b"date", b"x-request-id", b"alt-svc")
)  # fmt: skip
"""Names that need no look at their octets."""
_TARGET = re.compile(rb"[\x21\x22\x24-\x7e]+")
"""Visible ASCII without the fragment's `#`."""
_AUTHORITY = re.compile(rb"[A-Za-z0-9\-._~%!$&'()*+,;=:\[\]]+")


class MalformedRequest(ValueError):
    """The stream is reset, and no other (RFC 9113 section 8.1.1, RFC 9114 section 4.1.2)."""


class RequestHead(NamedTuple):
    method: str
    scheme: str
    target: bytes
    """`:path`: path and query."""
    headers: Headers
    """`host` first, made from `:authority`; one `cookie`."""
    content_length: int | None
    expects_continue: bool

    def scope(self, **connection: Any) -> dict[str, Any]:
        """An ASGI http scope; `connection`: client, server, extensions, state."""
        path, _, query = self.target.partition(b"?")
        text = path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "3",
            "method": self.method,
            "scheme": self.scheme,
            "path": unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": self.headers,
            **connection,
        }


def parse_request(fields: Headers) -> RequestHead:
    """Raises MalformedRequest. CONNECT is malformed here: it has no :path, and tunnels are not offered."""
    pseudo: dict[bytes, bytes] = {}
    headers: Headers = []
    cookies: list[bytes] = []
    host: bytes | None = None
    length: int | None = None
    expects_continue = False
    _check_values(fields)
    for name, value in fields:
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or headers or cookies or host is not None:
                raise MalformedRequest("unknown, repeated or late pseudo-header")
            pseudo[name] = value
            continue
        if name not in _USUAL and not _NAME.fullmatch(name):
            raise MalformedRequest("field name is not a lower-case token")
        if name == b"host":
            if host is not None:
                raise MalformedRequest("more than one host")
            host = value
        elif name == b"cookie":
            cookies.append(value)
        elif name in _CONNECTION_SPECIFIC and (name, value.lower()) != (b"te", b"trailers"):
            raise MalformedRequest("connection-specific field")
        else:
            if name == b"content-length":
                if length is not None or not value.isdigit() or len(value) > 18:
                    raise MalformedRequest("content-length is repeated or no number")
                length = int(value)
            elif name == b"expect":
                expects_continue = value.lower() == b"100-continue"
            headers.append((name, value))
    method, scheme, authority, target = _pseudo_headers(pseudo)
    if host is not None and host != authority:
        raise MalformedRequest("host differs from :authority")
    if cookies:
        headers.append((b"cookie", b"; ".join(cookies)))
    return RequestHead(method, scheme, target, [(b"host", authority), *headers], length, expects_continue)


def _check_values(fields: Headers) -> None:
    values = [*map(_VALUE, fields)]
    padded = [*map(bytes.strip, values)] != values and any(map(_PADDED.search, values))  # `strip` knows more spaces
    if padded or _CONTROL.search(b" ".join(values)):
        raise MalformedRequest("field value with a control character or surrounding space")


def _pseudo_headers(pseudo: dict[bytes, bytes]) -> tuple[str, str, bytes, bytes]:
    if len(pseudo) != len(_PSEUDO):
        raise MalformedRequest(f"missing {b', '.join(sorted(_PSEUDO - pseudo.keys())).decode()}")
    method, scheme, target = pseudo[b":method"], pseudo[b":scheme"], pseudo[b":path"]
    if not _TOKEN.fullmatch(method):
        raise MalformedRequest("method is no token")
    if scheme not in (b"https", b"http"):
        raise MalformedRequest("scheme is neither https nor http")
    if not _AUTHORITY.fullmatch(pseudo[b":authority"]):
        raise MalformedRequest("authority is empty or holds a character that no host may")
    if not _TARGET.fullmatch(target) or (target[:1] != b"/" and (method, target) != (b"OPTIONS", b"*")):
        raise MalformedRequest("path is not an absolute path of visible ASCII")
    return method.decode(), scheme.decode(), pseudo[b":authority"], target


def check_trailers(fields: Headers) -> None:
    """Raises MalformedRequest (RFC 9113 section 8.1)."""
    _check_values(fields)
    for name, _ in fields:
        if not _NAME.fullmatch(name) or name in _CONNECTION_SPECIFIC:
            raise MalformedRequest("a trailer that is a pseudo-header or no field")


def response_fields(status: int, headers: Iterable[tuple[bytes, bytes]], date: bytes) -> tuple[Headers, int | None]:
    """The field section of a final response, and its content-length if it has one.

    Names become lower-case; fields that HTTP/3 forbids are left out, since clients drop the connection over them.
    Raises ValueError for a head that cannot be sent as it was meant.
    """
    if not 200 <= status <= 999:
        raise ValueError(f"response status {status} is not a final one")
    fields: Headers = [(b":status", b"%d" % status)]
    length: int | None = None
    dated = False
    for name, value in headers:
        name = name.lower()
        if name in _CONNECTION_SPECIFIC:
            continue
        if (name not in _USUAL and not _NAME.fullmatch(name)) or _CONTROL.search(value):
            raise ValueError(f"response header {name!r} is not a token with a single-line value")
        if name == b"content-length":
            if length is not None or not value.isdigit():
                raise ValueError(f"response content-length {value!r} is repeated or no number")
            length = int(value)
            if status == 204:  # RFC 9110 section 8.6
                continue
        elif name == b"date":
            dated = True
        fields.append((name, value.strip(b" \t")))
    if not dated:
        fields.append((b"date", date))
    return fields, length


def still_owed(promised: int | None, size: int, end: bool) -> int | None:
    """What is left of a response's content-length after so many bytes more. Raises ValueError where it is not kept."""
    if promised is None:
        return None
    left = promised - size
    if left < 0 or (left and end):
        raise ValueError(f"response body is {abs(left)} bytes off its content-length header")
    return left
