from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.h1_memory import Headers, RequestHead
from edgeproxy.wire.h1_parser import RequestParser, StopReading
from edgeproxy.wire.limits import Limits

LIMITS = Limits(target_bytes=200, head_bytes=1000, headers=10, body_bytes=50)


@dataclass
class Requests:
    """A sink that keeps what it is told; body pieces are joined, since their cut is the network's."""

    events: list[Any] = field(default_factory=list)
    whole: int = 0
    """Requests that were told at once."""

    def request_began(self) -> None:
        self.events.append("began")

    def request_head(self, head: RequestHead, headers: Headers) -> None:
        self.events += [head, headers, b""]

    def request_body(self, data: bytes) -> None:
        self.events[-1] += data

    def request_ended(self) -> None:
        self.events.append("ended")

    def request_whole(self, head: RequestHead, headers: Headers, body: bytes) -> None:
        self.events += ["began", head, headers, body, "ended"]
        self.whole += 1

    @property
    def headers(self) -> list[Headers]:
        return [event for event in self.events if isinstance(event, list)]

    @property
    def heads(self) -> list[RequestHead]:
        return [event for event in self.events if isinstance(event, RequestHead)]

    @property
    def bodies(self) -> list[bytes]:
        return [event for event in self.events if isinstance(event, bytes)]


def parse(*parts: bytes, limits: Limits = LIMITS) -> Requests:
    requests = Requests()
    parser = RequestParser(limits, requests)
    for part in parts:
        parser.feed(part)
    return requests


def refusal(*parts: bytes, limits: Limits = LIMITS) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(*parts, limits=limits)
    return caught.value


def post(*fields: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"POST /a HTTP/1.1", b"Host: h", *fields, b"", body))


# ---- what is understood


def test_a_request_is_its_head_and_its_body() -> None:
    requests = parse(b"POST /a%20b?q=1&r HTTP/1.1\r\nHost: h:1\r\nX-Y:  z \t\r\nContent-Length: 3\r\n\r\nabc")
    assert requests.heads == [RequestHead("POST", b"/a%20b", b"q=1&r", "1.1", True, False)]
    assert requests.headers == [[(b"host", b"h:1"), (b"x-y", b"z"), (b"content-length", b"3")]]
    assert requests.bodies == [b"abc"]
    assert requests.events[-1] == "ended"


STREAM = b"".join(
    (
        post(b"Content-Length: 5", body=b"hello"),
        b"\r\n",
        b"GET http://other:80/x?y HTTP/1.1\r\nHost: h\r\n\r\n",
        post(b"Transfer-Encoding: chunked", body=b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n"),
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 4", body=b"body"),
        b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked", body=b"2\r\nxy\r\n0\r\n\r\n"),
        b"GET /last HTTP/1.0\r\n\r\n",
    )
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_requests(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in pairwise(edges) if end > start]
    assert parse(*parts).events == parse(STREAM).events


def test_bytes_one_by_one_give_the_same_requests() -> None:
    whole = parse(STREAM)
    assert parse(*(STREAM[i : i + 1] for i in range(len(STREAM)))).events == whole.events
    assert whole.bodies == [b"hello", b"", b"abcde", b"body", b"", b"xy", b""]
    assert [head.raw_path for head in whole.heads] == [b"/a", b"/x", b"/a", b"/a", b"*", b"/a", b"/last"]


def test_an_absolute_target_replaces_host() -> None:
    requests = parse(b"GET http://other:8080/x HTTP/1.1\r\nHost: h\r\nA: b\r\n\r\n")
    (head,), (headers,) = requests.heads, requests.headers
    assert [value for name, value in headers if name == b"host"] == [b"other:8080"]
    assert (head.raw_path, head.query) == (b"/x", b"")


@pytest.mark.parametrize(("target", "path"), [(b"http://h", b"/"), (b"HTTPS://h?q", b"/")])
def test_an_absolute_target_without_a_path_means_the_root(target: bytes, path: bytes) -> None:
    (head,) = parse(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n").heads
    assert head.raw_path == path


def test_trailers_are_dropped() -> None:
    requests = parse(post(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n0\r\nHost: evil\r\nX: y\r\n\r\n"))
    assert requests.headers[0] == [(b"host", b"h"), (b"transfer-encoding", b"chunked")]
    assert requests.events[-1] == "ended"


@pytest.mark.parametrize(
    ("request_bytes", "keeps"),
    [
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nHost: h\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n", False),
    ],
)
def test_keep_alive_is_what_version_and_connection_say(request_bytes: bytes, keeps: bool) -> None:
    assert parse(request_bytes).heads[0].keep_alive is keeps


def test_expectations_count_from_http_1_1_on() -> None:
    assert parse(post(b"Expect: 100-Continue", b"Content-Length: 1")).heads[0].expects_continue
    assert not parse(b"POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n").heads[0].expects_continue


UPGRADE = post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 0")


def test_what_is_wrong_behind_an_ignored_upgrade_is_refused_as_it_is_elsewhere() -> None:
    twice = b"GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n"
    for ahead in (b"", UPGRADE, UPGRADE * 2):
        assert refusal(ahead + twice).args == refusal(twice).args
        assert refusal(ahead + b"no request\r\n\r\n").code == "malformed_request"
    assert refusal(post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 51") + bytes(51)).status == 413


def test_a_sink_may_stop_the_reading_at_any_event_behind_an_ignored_upgrade() -> None:
    class Stops(Requests):
        def request_ended(self) -> None:
            super().request_ended()
            if len(self.heads) == stop_at:
                raise StopReading

    for stop_at in (1, 2, 3):
        requests = Stops()
        with pytest.raises(StopReading):
            RequestParser(LIMITS, requests).feed(UPGRADE * 4)
        assert len(requests.heads) == stop_at


def test_a_read_may_hold_any_number_of_ignored_upgrades() -> None:
    assert len(parse(UPGRADE * 2000).heads) == 2000


# ---- request smuggling: what two parsers could read differently is refused


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"0\r\n\r\n"),
        post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
        post(b"Content-Length: 3, 3", body=b"abc"),
        post(b"Content-Length: +3", body=b"abc"),
        post(b"Content-Length: 0x3", body=b"abc"),
        post(b"Content-Length:", body=b"abc"),
        post(b"Content-Length: 99999999999999999999999", body=b"abc"),
        post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"),
        post(b"X: a\r\n b"),
        post(b"X: a\nY: b"),
        post(b"X: a\0b"),
        post(b"X: a\rb"),
        post(b": a"),
        post(b"X(): a"),
        post(b"Host: i"),
        post(b"Transfer-Encoding: chunked", body=b"3\nabc\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", body=b"3\r\nabcd\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", body=b"-3\r\nabc\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", body=b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n"),
        b"GET / HTTP/1.1\nHost: h\n\n",
        b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
        b"GET /\x80 HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: user@h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h/x\r\n\r\n",
        b"GET http://user@h/ HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_an_ambiguous_or_malformed_request_is_refused_whole_and_dribbled(request_bytes: bytes) -> None:
    assert refusal(request_bytes).status == 400
    assert refusal(*(request_bytes[i : i + 1] for i in range(len(request_bytes)))).status == 400


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501),
        (post(b"Transfer-Encoding: gzip"), 501),
        (b"CONNECT h:1 HTTP/1.1\r\nHost: h:1\r\n\r\n", 501),
        (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
def test_what_is_not_supported_is_named(request_bytes: bytes, status: int) -> None:
    assert refusal(request_bytes).status == status


# ---- limits


def test_a_target_up_to_its_limit_is_taken_and_beyond_it_refused() -> None:
    longest = b"/" + b"a" * (LIMITS.target_bytes - 1)
    assert parse(b"GET " + longest + b" HTTP/1.1\r\nHost: h\r\n\r\n").heads[0].raw_path == longest
    assert refusal(b"GET " + longest + b"a").status == 414


def test_a_head_is_limited_in_bytes_and_fields() -> None:
    assert refusal(post(b"X: " + b"a" * LIMITS.head_bytes)).status == 431
    assert refusal(post(*[b"X: a"] * LIMITS.headers)).status == 431
    assert parse(post(*[b"X: a"] * (LIMITS.headers - 1)))


def test_a_field_that_never_ends_is_not_collected() -> None:
    error = refusal(post()[:-2] + b"X: ", *[b"a" * 100] * 25)
    assert error.status == 431


def test_trailers_count_as_head() -> None:
    start = post(b"Transfer-Encoding: chunked", body=b"0\r\n")
    assert refusal(start + b"X: a\r\n" * LIMITS.headers + b"\r\n").status == 431
    assert refusal(start, b"X: ", *[b"a" * 100] * 25).status == 431


def test_a_chunk_extension_that_never_ends_is_refused() -> None:
    assert refusal(post(b"Transfer-Encoding: chunked", body=b"1;"), *[b"a" * 100] * 25).status == 431


def test_a_body_is_limited_by_its_announced_and_by_its_real_length() -> None:
    body = b"a" * LIMITS.body_bytes
    assert parse(post(b"Content-Length: %d" % len(body), body=body)).bodies == [body]
    assert refusal(post(b"Content-Length: %d" % (len(body) + 1))).status == 413
    chunks = b"19\r\n" + b"a" * 25 + b"\r\n"
    assert refusal(post(b"Transfer-Encoding: chunked", body=chunks * 3)).status == 413


def test_limits_hold_for_each_request_alone() -> None:
    request = post(b"X: " + b"a" * 500, b"Content-Length: 30", body=b"b" * 30)
    assert len(parse(request * 20).heads) == 20


@given(st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(STREAM.splitlines(keepends=True))), max_size=30))
def test_whatever_arrives_is_requests_or_a_refusal(parts: list[bytes]) -> None:
    try:
        requests = parse(*parts)
    except ApiError as error:
        assert error.status in (400, 413, 414, 431, 501, 505)
    else:
        assert all(sum(len(n) + len(v) for n, v in headers) <= LIMITS.head_bytes for headers in requests.headers)
