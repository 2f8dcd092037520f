"""The connection fed directly: the transport is a list, so every split of the bytes can be tried."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.upstream.connection import Connection
from edgeproxy.upstream.response import Response, ResponseLimits, UpstreamError


class ListTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.reading = True
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Owner:
    heard_at = 0.0

    def __init__(self) -> None:
        self.events: list[str] = []

    def released(self, connection: Connection) -> None:
        self.events.append("released")

    def lost(self, connection: Connection) -> None:
        self.events.append("lost")


class Bench:
    def __init__(self, limits: ResponseLimits | None = None) -> None:
        self.owner = Owner()
        self.transport = ListTransport()
        self.connection = Connection("near-1", limits or ResponseLimits(), self.owner)
        self.connection.connection_made(self.transport)

    async def ask(self, *pieces: bytes, head_only: bool = False, end: bool = False) -> Response:
        """Sends a request, feeds the pieces one by one, and (end) closes as the peer would."""
        response = self.connection.send(b"GET", head_only=head_only)
        task = asyncio.get_running_loop().create_task(response.head())
        await asyncio.sleep(0)
        for piece in pieces:
            self.connection.data_received(piece)
        if end:
            self.connection.connection_lost(None)
        await task
        return response


async def body(response: Response) -> bytes:
    found = b""
    while data := await response.read():
        found += data
    return found


def chunked(parts: list[bytes], extension: bytes, trailer: bytes) -> bytes:
    chunks = (b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return b"".join(chunks) + b"0\r\n" + trailer + b"\r\n"


parts = st.lists(st.binary(max_size=40), max_size=6)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """(bytes on the wire, body, whether the connection can be used again)"""
    content = draw(parts)
    whole = b"".join(content)
    head = draw(
        st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"])
    )
    head += b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nx-a: 1\r\nX-A:  2\r\n"
    framing = draw(st.sampled_from(["length", "chunked", "close"]))
    if framing == "length":
        return head + b"content-length: %d\r\n\r\n" % len(whole) + whole, whole, True
    if framing == "chunked":
        extension = draw(st.sampled_from([b"", b";a=b", b';a="b;c"']))
        trailer = draw(st.sampled_from([b"", b"x-trailer: 1\r\n"]))
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(content, extension, trailer), whole, True
    return head + b"\r\n" + whole, whole, False


@settings(deadline=None)
@given(answers(), st.lists(st.integers(0, 400), max_size=12))
def test_any_split_gives_the_same_answer(answer: tuple[bytes, bytes, bool], cuts: list[int]) -> None:
    wire, expected, reusable = answer
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    pieces = [wire[a:b] for a, b in pairwise(edges) if a < b]

    async def run() -> None:
        bench = Bench()
        response = await bench.ask(*pieces, end=not reusable)
        assert response.status == 200
        assert [field for field in response.headers if field[0] != b"content-length"] == [
            (b"content-type", b"text/event-stream"),
            (b"x-a", b"1"),
            (b"x-a", b"2"),
        ]
        assert await body(response) == expected
        assert bench.owner.events == ["released" if reusable else "lost"]

    asyncio.run(run())


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_no_bytes_a_node_may_send_raise_anything_but_an_upstream_error(junk: bytes, size: int) -> None:
    async def run() -> None:
        bench = Bench()
        pieces = [junk[i : i + size] for i in range(0, len(junk), size)]
        try:
            await body(await bench.ask(*pieces, end=True))
        except UpstreamError as error:
            assert "near-1" in error.message

    asyncio.run(run())


async def test_one_byte_at_a_time() -> None:
    wire = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n"
    assert await body(await Bench().ask(*(bytes([byte]) for byte in wire))) == b"hello"


@pytest.mark.parametrize(
    ("wire", "cause"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", "not a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok", "not a response"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\nok", "not a response"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "transfer coding"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n0\r\n\r\n", "transfer coding"),
        (b"HTTP/1.1 200 OK\r\na: b\r\n folded\r\n\r\n", "not a response"),
        (b"HTTP/1.1 200 OK\r\na : b\r\n\r\n", "not a response"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            "unasked|without being asked",
        ),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 101 + b"\r\n", "header fields"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 40_000 + b"\r\n\r\n", "header fields"),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000, "without any body"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3_000, "without any body"),
    ],
)
async def test_a_head_that_is_unsound_fails_in_phase_head(wire: bytes, cause: str) -> None:
    bench = Bench()
    with pytest.raises(UpstreamError, match=cause) as caught:
        await bench.ask(wire)
    assert caught.value.phase == "head"
    assert bench.transport.aborted


@pytest.mark.parametrize(
    "rest",
    [
        b"2\r\nabc\r\n",
        b"x\r\n",
        b"fffffffffffffffff\r\n",
        b"0\r\n" + b"a: b\r\n" * 101,
        b"2;" + b"e" * 70_000,
        b"0\r\ntrailer: " + b"e" * 70_000,
    ],
)
async def test_a_broken_chunk_fails_in_phase_body_after_what_came_before_it(rest: bytes) -> None:
    bench = Bench()
    response = await bench.ask(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", rest)
    assert (await response.read()).startswith(b"abc")
    with pytest.raises(UpstreamError) as caught:
        await body(response)
    assert caught.value.phase == "body"
    assert bench.transport.aborted


@pytest.mark.parametrize("framing", [b"content-length: 10", b"transfer-encoding: chunked"])
async def test_a_body_that_ends_early_is_never_a_clean_end(framing: bytes) -> None:
    response = await Bench().ask(b"HTTP/1.1 200 OK\r\n" + framing + b"\r\n\r\n4\r\nabc", end=True)
    assert await response.read()
    with pytest.raises(UpstreamError, match="before the end of the body") as caught:
        await response.read()
    assert caught.value.phase == "body"


async def test_a_reset_ends_a_close_delimited_body_with_an_error() -> None:
    bench = Bench()
    response = await bench.ask(b"HTTP/1.1 200 OK\r\n\r\nabc")
    bench.connection.connection_lost(ConnectionResetError("reset by peer"))
    assert await response.read() == b"abc"
    with pytest.raises(UpstreamError, match="reset by peer"):
        await response.read()


@pytest.mark.parametrize(
    ("status", "head_only"), [(b"204 No Content", False), (b"304 Not Modified", False), (b"200 OK", True)]
)
async def test_answers_without_a_body_end_with_their_head(status: bytes, head_only: bool) -> None:
    bench = Bench()
    length = b"" if status.startswith(b"204") else b"content-length: 10\r\n"
    for _ in range(2):
        response = await bench.ask(b"HTTP/1.1 " + status + b"\r\n" + length + b"\r\n", head_only=head_only)
        assert await response.read() == b""
    assert bench.owner.events == ["released", "released"]


async def test_hop_by_hop_fields_and_those_that_connection_names_are_taken_out() -> None:
    response = await Bench().ask(
        b"HTTP/1.1 200 OK\r\nconnection: keep-alive, X-Hop\r\nkeep-alive: timeout=9\r\nx-hop: 1\r\n"
        b"proxy-connection: x\r\nupgrade: h2c\r\ntrailer: x\r\nx-end: 2\r\ncontent-length: 0\r\n\r\n"
    )
    assert response.headers == [(b"x-end", b"2"), (b"content-length", b"0")]


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nsplit",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more",
    ],
)
async def test_a_connection_that_closes_or_says_too_much_is_not_used_again(wire: bytes) -> None:
    bench = Bench()
    assert await body(await bench.ask(wire)) == b"ok"
    assert bench.owner.events == ["lost"]
    assert bench.transport.aborted


async def test_a_connection_whose_request_is_not_all_sent_is_not_used_again() -> None:
    bench = Bench()
    bench.connection.pause_writing()
    assert (await bench.ask(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")).status == 413
    assert bench.owner.events == ["lost"]


async def test_bytes_on_an_idle_connection_close_it() -> None:
    bench = Bench()
    bench.connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert bench.owner.events == ["lost"]


async def test_the_phase_is_send_while_the_request_is_not_all_sent() -> None:
    bench = Bench()
    bench.connection.pause_writing()
    with pytest.raises(UpstreamError, match="whole request") as caught:
        await bench.ask(end=True)
    assert caught.value.phase == "send"


async def test_an_unread_body_pauses_the_socket_and_reading_resumes_it() -> None:
    bench = Bench(ResponseLimits(buffer_bytes=1000))
    response = await bench.ask(b"HTTP/1.1 200 OK\r\ncontent-length: 3000\r\n\r\n" + b"x" * 1001)
    assert not bench.transport.reading
    assert len(await response.read()) == 1001
    assert bench.transport.reading


async def test_a_lingering_reader_leaves_the_connection_to_the_next_request() -> None:
    bench = Bench()
    first = await bench.ask(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfirst")
    second = await bench.ask(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecond")
    assert (await body(second), await body(first)) == (b"second", b"first")
    first.close()
    assert not bench.transport.aborted


async def test_close_aborts_an_unfinished_answer_and_only_that() -> None:
    bench = Bench()
    response = await bench.ask(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfi")
    response.close()
    response.close()
    assert bench.transport.aborted
    assert bench.owner.events == ["lost"]


async def test_the_clocks_of_a_response_are_in_order() -> None:
    response = await Bench().ask(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    assert 0 < response.sent_at <= response.first_byte_at <= response.heard_at


@pytest.mark.parametrize(
    ("value", "seconds"), [(b"timeout=5, max=100", 4.0), (b"max=3, Timeout=1", 0.0), (b"timeout=x", float("inf"))]
)
async def test_the_peers_keep_alive_timeout_is_honoured_less_a_second(value: bytes, seconds: float) -> None:
    bench = Bench()
    await bench.ask(b"HTTP/1.1 200 OK\r\nkeep-alive: " + value + b"\r\ncontent-length: 0\r\n\r\n")
    assert bench.connection.idle_limit == seconds
