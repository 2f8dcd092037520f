"""HTTP/1.1 requests out of bytes (RFC 9112), sans I/O: httptools, and the checks that it leaves to its user."""

from __future__ import annotations

import re
from typing import Protocol

import httptools

from edgeproxy.protocol.openai.errors import ApiError, invalid
from edgeproxy.wire.h1_memory import Headers, HeadMemory, RequestHead
from edgeproxy.wire.limits import Limits

_INSPECTED = (b"host", b"transfer-encoding", b"content-length", b"expect")
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]+)(:[0-9]*)?")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_VERSION_ERRORS = ("Invalid HTTP version", "Pause on PRI/Upgrade")
"""llhttp's words for a version that it does not know, and for the preface of HTTP/2."""


class StopReading(Exception):
    """Raised by a sink that takes no further request; the parser is of no use afterwards."""


class Sink(Protocol):
    """What a parser tells: of each request its beginning, head, body and end in this order, or all at once. Each may
    raise StopReading."""

    def request_began(self) -> None: ...

    def request_head(self, head: RequestHead, headers: Headers) -> None:
        """`headers`: lower-case names in order; one `host` (none or one in 1.0), that of an absolute-form target if
        there is one."""

    def request_body(self, data: bytes) -> None: ...

    def request_ended(self) -> None: ...

    def request_whole(self, head: RequestHead, headers: Headers, body: bytes) -> None: ...


class RequestParser:
    """Any split of the same bytes gives the same requests. Trailers are checked and dropped."""

    def __init__(self, limits: Limits, sink: Sink) -> None:
        self._limits = limits
        self._sink = sink
        self._parser = httptools.HttpRequestParser(self)
        self._fed = 0
        """Size of the read in progress."""
        self._unused = 0
        """Bytes read after the one in which the last event was."""
        self._known_host: bytes | None = None
        self._memory = HeadMemory(limits.head_bytes, min(limits.body_bytes, limits.unread_body_bytes))
        self._begun = 0
        """Requests that began in the read in progress."""
        self._between = True
        """No request has begun that has not ended."""
        self._reset()

    def _reset(self) -> None:
        self._told: tuple[RequestHead, Headers] | None = None
        """The head, once it is there."""
        self._target = b""
        self._headers: Headers = []
        self._head_at_most = 0
        """Size of the read in which the head began: with `_unused` a bound on the head that costs nothing per field."""
        self._fields = 0
        self._body_bytes = 0
        self._host: bytes | None = None
        self._framing = b""
        self._chunked = False
        self._expects_continue = False
        self._upgrading = False

    def feed(self, data: bytes) -> None:
        """Raises ApiError (400, 413, 414, 431, 501, 505) for what cannot be served; feed nothing afterwards."""
        fresh = self._between
        if fresh and (known := self._memory.recall(data)) is not None:
            self._unused = 0
            self._sink.request_whole(*known)
            return
        self._begun = 0
        rest = data
        while (upgrade := self._parse(rest)) is not None:
            self._resume_after_upgrade()
            rest, fresh = rest[upgrade:], False
        if fresh and self._begun == 1 and self._told is not None and not self._chunked:
            self._memory.keep(data[: len(data) - self._body_bytes], *self._told)
        self._told = None  # idle connections are many

    def knows(self, data: bytes) -> bool:
        """`data` is a whole request, not chunked, with a head that came before."""
        return self._between and self._memory.recall(data) is not None

    def _parse(self, data: bytes) -> int | None:
        """Where in `data` the head of a request ends that asks for an upgrade, and llhttp with it; else None."""
        self._fed = len(data)
        self._unused += self._fed
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # Nothing is parsed in here: an exception of a callback would find this one in its context.
            return int(upgrade.args[0])
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            raise _malformed(str(error)) from None
        if self._unused > 2 * self._limits.head_bytes:
            # A field or chunk extension that does not end is held by llhttp, or skipped, without any callback.
            raise self._head_too_large()
        return None

    # ---- httptools callbacks

    def on_message_begin(self) -> None:
        self._reset()
        self._begun += 1
        self._between = False
        self._unused = 0
        self._head_at_most = self._fed
        self._sink.request_began()

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > self._limits.target_bytes:
            raise ApiError(
                414, f"The request target exceeds {self._limits.target_bytes} bytes; shorten it.", "uri_too_long"
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value.rstrip()))  # llhttp lets no white space pass but blanks and tabs

    def on_headers_complete(self) -> None:
        parser = self._parser
        headers = self._headers
        if self._head_at_most + self._unused > self._limits.head_bytes or len(headers) > self._limits.headers:
            self._check_size(headers)
        self._unused = 0
        self._headers = []
        self._fields = len(headers)
        self._inspect(headers)
        self._upgrading = parser.should_upgrade()
        method: str = parser.get_method().decode()
        version: str = parser.get_http_version()
        self._check(method, version)
        raw_path, query = self._split_target(method, headers)
        head = RequestHead(method, raw_path, query, version, parser.should_keep_alive(), self._expects_continue)
        self._told = head, headers
        self._sink.request_head(head, headers)

    def on_body(self, data: bytes) -> None:
        self._unused = 0
        self._body_bytes += len(data)
        if self._body_bytes > self._limits.body_bytes:
            raise self._body_too_large()
        self._sink.request_body(data)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        if self._headers:
            self._check_size(self._headers)
        self._unused = 0
        self._between = True
        self._sink.request_ended()

    # ---- checks

    def _check_size(self, headers: Headers) -> None:
        """Of the head, where more bytes than its limit have been read since its start, or of the trailers."""
        size = sum(len(name) + len(value) + 4 for name, value in headers)
        if size > self._limits.head_bytes or self._fields + len(headers) > self._limits.headers:
            raise self._head_too_large()

    def _inspect(self, headers: Headers) -> None:
        found = dict(headers)
        if len(found) == len(headers):
            for name in _INSPECTED:
                if name in found:
                    self._heed(name, found[name])
        else:
            for name, value in headers:
                if name in _INSPECTED:
                    self._heed(name, value)

    def _heed(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            if self._host is not None:
                raise invalid("The request has two Host header fields; send one (RFC 9112 section 3.2).")
            self._host = value
        elif name == b"transfer-encoding":
            if value.lower() != b"chunked":
                raise ApiError(
                    501,
                    "The request's transfer-encoding is not supported; send chunked or a length.",
                    "unsupported_transfer_coding",
                )
            self._framing, self._chunked = b"transfer-encoding: chunked\r\n", True
        elif name == b"content-length":
            if int(value) > self._limits.body_bytes:
                raise self._body_too_large()
            self._framing = b"content-length: %b\r\n" % value
        else:
            self._expects_continue = value.lower() == b"100-continue"

    def _check(self, method: str, version: str) -> None:
        if version not in ("1.1", "1.0"):
            raise _version_refused()
        if method == "CONNECT":
            raise ApiError(501, "CONNECT is not supported; this is no forward proxy.", "unsupported_method")
        if version == "1.0":
            self._expects_continue = False
            if self._chunked:
                raise invalid("HTTP/1.0 has no transfer-encoding; send a content-length (RFC 9112 section 6.1).")
        elif self._host is None:
            raise invalid("The request has no Host header field; HTTP/1.1 requires one (RFC 9112 section 3.2).")
        if self._host != self._known_host:
            if self._host is not None and _HOST.fullmatch(self._host) is None:
                raise invalid("The Host header field is not a host name or address with an optional port.")
            self._known_host = self._host

    def _split_target(self, method: str, headers: Headers) -> tuple[bytes, bytes]:
        target = self._target
        if not target.startswith(b"/"):
            if (absolute := _ABSOLUTE.fullmatch(target)) is not None and _HOST.fullmatch(absolute[1]) is not None:
                # RFC 9112 section 3.2.2: the target's authority replaces what Host says.
                headers[:] = [field for field in headers if field[0] != b"host"]
                headers.append((b"host", absolute[1]))
                target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
            elif not (target == b"*" and method == "OPTIONS"):
                raise invalid("The request target is neither a path nor an http URL (RFC 9112 section 3.2).")
        if b"#" in target:
            raise invalid("The request target holds a fragment (`#`); percent-encode or drop it.")
        raw_path, _, query = target.partition(b"?")
        return raw_path, query

    def _head_too_large(self) -> ApiError:
        limits = self._limits
        return ApiError(
            431,
            f"The request's header section exceeds {limits.head_bytes} bytes or {limits.headers} fields; send less.",
            "headers_too_large",
        )

    def _body_too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The request body exceeds {self._limits.body_bytes} bytes; send a shorter one.",
            "request_too_large",
        )

    # ---- Upgrade

    def _resume_after_upgrade(self) -> None:
        """No upgrade is served, so the message goes on, but llhttp has ended it at its head.

        A new parser that has seen an equal framing reads the body and what follows. Clients that offer `h2c` on every
        plain connection (java.net.http, curl --http2) lose their bodies otherwise.
        """
        self._upgrading = False
        self._unused = 0
        self._parser = httptools.HttpRequestParser(_AfterHead(self))
        self._parse(b"POST / HTTP/1.1\r\n" + self._framing + b"\r\n")
        self._unused = 0


class _AfterHead:
    """Passes a parser's callbacks on once the first head is over."""

    def __init__(self, parser: RequestParser) -> None:
        self._parser = parser
        self._live = False
        self.on_body = parser.on_body
        self.on_message_complete = parser.on_message_complete

    def on_message_begin(self) -> None:
        if self._live:
            self._parser.on_message_begin()

    def on_url(self, part: bytes) -> None:
        if self._live:
            self._parser.on_url(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._live:
            self._parser.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._live:
            self._parser.on_headers_complete()
        self._live = True


def _version_refused() -> ApiError:
    return ApiError(505, "Only HTTP/1.1 and HTTP/1.0 are spoken on this connection.", "http_version_not_supported")


def _malformed(reason: str) -> ApiError:
    if reason in _VERSION_ERRORS:
        return _version_refused()
    return invalid(f"The request is not well-formed HTTP/1.1 ({reason}).", code="malformed_request")
