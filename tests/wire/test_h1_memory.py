"""A head that came before is not parsed again; what is told of its request is the same."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.h1_parser import RequestParser, StopReading
from edgeproxy.wire.limits import Limits
from tests.wire.test_h1_parser import Requests, post

LIMITS = Limits(head_bytes=1000, headers=10, body_bytes=50, unread_body_bytes=40)


class Closing(Requests):
    """Takes nothing behind a request that ends its connection, as a connection does."""

    def request_ended(self) -> None:
        super().request_ended()
        if not self.heads[-1].keep_alive:
            raise StopReading


def fed(parts: Iterable[bytes]) -> tuple[Closing, str]:
    """What was told of it, and how it ended."""
    requests = Closing()
    parser = RequestParser(LIMITS, requests)
    try:
        for part in parts:
            parser.feed(part)
    except (ApiError, StopReading) as end:
        return requests, repr(end)
    return requests, ""


def octets(reads: list[bytes]) -> Iterable[bytes]:
    """Fed so, no head is remembered: none comes in one read with its body."""
    stream = b"".join(reads)
    return (stream[i : i + 1] for i in range(len(stream)))


def ask(size: int, *fields: bytes) -> bytes:
    return post(b"content-length: %d" % size, *fields, body=b"b" * size)


def test_a_request_whose_head_came_before_is_told_at_once_whatever_its_length() -> None:
    reads = [ask(size, b"X: y") for size in (3, 3, 17, 40, 1)]
    requests, _ = fed(reads)
    assert requests.whole == 4
    assert requests.events == fed(octets(reads))[0].events


def test_line_ends_between_requests_do_not_add_up() -> None:
    """RFC 9112 section 2.2: a server skips an empty line before a request."""
    requests, end = fed([ask(3), *[b"\r\n", ask(3)] * 2 * LIMITS.head_bytes])
    assert not end
    assert requests.whole == 2 * LIMITS.head_bytes


def test_a_head_whose_body_came_in_pieces_is_known_too() -> None:
    first, second = ask(30), ask(20)
    assert fed([first[:-25], first[-25:], second])[0].whole == 1


def test_a_client_whose_heads_always_differ_is_soon_not_remembered() -> None:
    reads = [ask(1, b"traceparent: %d" % n) for n in range(20)]
    assert fed([*reads, reads[-1]])[0].whole == 0


def test_a_body_that_a_connection_would_not_hold_is_told_in_pieces() -> None:
    requests, _ = fed([ask(41), ask(41)])
    assert (requests.whole, len(requests.heads)) == (0, 2)


PARTS = [
    *[b"Content-Length: %b", b"content-length:%b ", b"CONTENT-LENGTH:\t%b", b"Content-Length: 0%b"],
    b"X: content-length: %b",
    *[b"X: y", b"x:y", b"Connection: keep-alive", b"Connection: close, X", b"Connection: Upgrade", b"Upgrade: h2c"],
    *[b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"X-Content-Length: %b", b"Host: other"],
]
LENGTHS = PARTS[:4]


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Requests of few heads, each sent several times, of which some are unsound and some lie about their length."""
    heads = [
        (
            draw(st.lists(st.sampled_from(PARTS), max_size=1)),
            draw(st.sampled_from(LENGTHS)),
            draw(st.lists(st.sampled_from(PARTS), max_size=1)),
        )
        for _ in range(draw(st.integers(1, 2)))
    ]
    reads = []
    for before, length, behind in draw(st.lists(st.sampled_from(heads), min_size=2, max_size=6)):
        body = draw(st.sampled_from([b"b", b"\r", b"\n", b"0\r\n\r\n"])) * draw(st.integers(0, 12))
        told = b"%d" % max(0, len(body) + draw(st.sampled_from([0] * 12 + [-1, 1])))
        fields = [part.replace(b"%b", told) for part in (*before, length, *behind)]
        reads.append(draw(st.sampled_from([b"", b"", b"", b"\r\n"])) + post(*fields, body=body))
    return reads


@given(conversations())
def test_what_is_told_is_the_same_as_of_a_parser_that_remembers_nothing(reads: list[bytes]) -> None:
    requests, end = fed(reads)
    plain, plain_end = fed(octets(reads))
    assert (requests.events, end) == (plain.events, plain_end)
