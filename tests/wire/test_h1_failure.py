"""An application that fails never leaves its client with something that looks like a whole response."""

from __future__ import annotations

import asyncio

import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Message, Receive, Send
from tests.wire.apps import END, OK, piece, read_body
from tests.wire.conftest import Serve

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
CUT = (asyncio.IncompleteReadError, ConnectionError, OSError)


@pytest.mark.parametrize("started", [False, True], ids=["before start", "start still held"])
async def test_a_failure_before_anything_was_sent_is_an_openai_error(
    serve: Serve, started: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if started:
            await send(OK)
        raise LookupError("secret detail")

    edge = await serve(app)
    client = await edge.connect()
    await client.send(GET)
    reply = await client.answer()
    assert reply.status == 500
    assert reply.error()["type"] == "server_error"
    assert b"secret" not in reply.body
    assert "LookupError" in caplog.text


async def test_an_application_that_answers_nothing_is_a_500(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None: ...

    edge = await serve(app)
    client = await edge.connect()
    await client.send(GET)
    assert (await client.answer()).status == 500


@pytest.mark.parametrize("failure", ["raises", "returns"])
@pytest.mark.parametrize("framing", ["chunked", "length", "until close"])
async def test_a_failure_in_the_response_cuts_it(serve: Serve, failure: str, framing: str) -> None:
    start: Message = {**OK, "headers": [(b"content-length", b"100")] if framing == "length" else []}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start)
        await send(piece(b"part"))
        if failure == "raises":
            raise LookupError

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.0\r\n\r\n" if framing == "until close" else GET)
    with pytest.raises(CUT):
        await client.answer()


@pytest.mark.parametrize(
    ("body", "more", "kept"),
    [(b"four!", False, False), (b"123", False, False), (b"four", False, True), (b"four!", True, False)],
)
async def test_a_body_must_be_as_long_as_its_content_length(serve: Serve, body: bytes, more: bool, kept: bool) -> None:
    start: Message = {**OK, "headers": [(b"content-length", b"4")]}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start)
        await send({"type": "http.response.body", "body": body, "more_body": more})

    edge = await serve(app)
    client = await edge.connect()
    await client.send(GET)
    assert (await client.answer()).status == (200 if kept else 500)


@pytest.mark.parametrize(
    "header",
    [
        (b"x", b"a\r\nset-cookie: evil"),
        (b"x", b"a\nb"),
        (b"x", b"a\rb"),
        (b"x", b"a\0b"),
        (b"x\r\ny", b"a"),
        (b"content-length", b"4, 4"),
        (b"content-length", b"-4"),
    ],
)
async def test_a_header_that_would_split_the_response_is_never_sent(
    serve_plain: Serve, header: tuple[bytes, bytes]
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**OK, "headers": [header]})
        await send({**END, "body": b"body"})

    edge = await serve_plain(app)
    client = await edge.connect()
    await client.send(GET)
    reply = await client.answer()
    assert reply.status == 500
    assert b"evil" not in reply.body


async def test_the_application_does_not_frame_the_response(serve_plain: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**OK, "headers": [(b"Transfer-Encoding", b"chunked"), (b"Keep-Alive", b"timeout=1")]})
        await send({**END, "body": b"body"})

    edge = await serve_plain(app)
    client = await edge.connect()
    await client.send(GET)
    reply = await client.answer()
    assert (reply.body, reply["content-length"], reply["transfer-encoding"], reply["keep-alive"]) == (
        b"body",
        "4",
        None,
        None,
    )


async def test_a_broken_chunk_ends_the_request_for_both_sides(serve: Serve) -> None:
    outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await read_body(receive)
        except ConnectionError:
            outcome.set_result("disconnect")
            raise

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    await begun.wait()
    await client.send(b"zz\r\n")
    assert (await client.answer()).status == 400
    assert await outcome == "disconnect"
    edge.later(Limits().linger_s)
    assert await client.closed()


async def test_a_request_that_breaks_in_the_read_that_brought_it_never_begins(serve: Serve) -> None:
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n")
    assert (await client.answer()).status == 400
    edge.later(Limits().linger_s)
    assert await client.closed()
    assert not begun.is_set()
