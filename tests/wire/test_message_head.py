"""Heads of HTTP/3 messages (RFC 9114 sections 4.1.2 to 4.3)."""

from __future__ import annotations

import pytest

from edgeproxy.wire.message_head import Headers, MalformedRequest, parse_request, response_fields
from tests.client.h3_peer import get

DATE = b"Thu, 01 Jan 1970 00:00:00 GMT"


def changed(name: bytes, value: bytes) -> Headers:
    return [(n, value if n == name else v) for n, v in get()]


@pytest.mark.parametrize("missing", [b":method", b":scheme", b":authority", b":path"])
def test_every_pseudo_header_is_needed(missing: bytes) -> None:
    with pytest.raises(MalformedRequest, match=missing.decode()):
        parse_request([field for field in get() if field[0] != missing])


@pytest.mark.parametrize(
    "fields",
    [
        [*get(), (b":path", b"/")],
        [*get(), (b":protocol", b"websocket")],
        [*get(), (b":status", b"200")],
        [(b"accept", b"*/*"), *get()],
        [(b"host", b"localhost"), *get()],
        [(b"cookie", b"a=b"), *get()],
        [*get(), (b"Accept", b"*/*")],
        [*get(), (b"", b"x")],
        [*get(), (b"a b", b"x")],
        [*get(), (b"a:b", b"x")],
        [*get(), (b"x", b"a\nb")],
        [*get(), (b"x", b"a\rb")],
        [*get(), (b"x", b"a\0b")],
        [*get(), (b"x", b" a")],
        [*get(), (b"x", b"a\t")],
        [*get(), (b"connection", b"close")],
        [*get(), (b"transfer-encoding", b"chunked")],
        [*get(), (b"upgrade", b"h2c")],
        [*get(), (b"te", b"gzip")],
        [*get(), (b"host", b"elsewhere")],
        [*get(), (b"host", b"localhost"), (b"host", b"localhost")],
        [*get(), (b"content-length", b"-1")],
        [*get(), (b"content-length", b"1, 1")],
        [*get(), (b"content-length", b"1"), (b"content-length", b"1")],
        [*get(), (b"content-length", "\u0661".encode())],
        changed(b":method", b"GET IT"),
        changed(b":method", b""),
        changed(b":scheme", b"ftp"),
        changed(b":authority", b""),
        changed(b":authority", b"local host"),
        changed(b":authority", b"localhost/path"),
        changed(b":path", b""),
        changed(b":path", b"no-slash"),
        changed(b":path", b"*"),
        changed(b":path", b"/with space"),
        changed(b":path", b"/#fragment"),
        changed(b":path", b"/\x7f"),
        changed(b":path", "/é".encode()),
    ],
    ids=str,
)
def test_malformed_heads_are_refused(fields: Headers) -> None:
    with pytest.raises(MalformedRequest):
        parse_request(fields)


def test_a_head_becomes_what_an_application_expects() -> None:
    fields = [(b"host", b"localhost"), (b"content-length", b"12"), (b"expect", b"100-Continue"), (b"te", b"Trailers")]
    head = parse_request([*get("/a%2Fb?c#"[:-1], "POST"), *fields])
    assert (head.method, head.scheme, head.target) == ("POST", "https", b"/a%2Fb?c")
    assert (head.content_length, head.expects_continue) == (12, True)
    assert head.headers == [(b"host", b"localhost"), *fields[1:]]
    scope = head.scope(client=None)
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/a/b", b"/a%2Fb", b"c")


def test_options_may_ask_about_the_whole_server() -> None:
    assert parse_request([*get("*", "OPTIONS")]).target == b"*"


@pytest.mark.parametrize(
    "name", [b"Connection", b"keep-alive", b"Proxy-Connection", b"TE", b"transfer-encoding", b"Upgrade"]
)
def test_connection_specific_response_fields_are_left_out(name: bytes) -> None:
    fields, _ = response_fields(200, [(name, b"x"), (b"Content-Type", b"text/plain")], DATE)
    assert fields == [(b":status", b"200"), (b"content-type", b"text/plain"), (b"date", DATE)]


def test_an_own_date_is_kept() -> None:
    fields, length = response_fields(200, [(b"Date", b"mine"), (b"Content-Length", b"7")], DATE)
    assert fields == [(b":status", b"200"), (b"date", b"mine"), (b"content-length", b"7")]
    assert length == 7


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (103, []),
        (1000, []),
        (200, [(b"a b", b"x")]),
        (200, [(b":status", b"500")]),
        (200, [(b"x", b"a\nb")]),
        (200, [(b"x", b"a\r")]),
        (200, [(b"x", b"\0")]),
        (200, [(b"content-length", b"-1")]),
        (200, [(b"content-length", b"1"), (b"content-length", b"1")]),
    ],
    ids=str,
)
def test_a_response_head_that_would_not_arrive_as_meant_is_refused(status: int, headers: Headers) -> None:
    with pytest.raises(ValueError, match="response"):
        response_fields(status, headers, DATE)
