"""What the application sees of a request, and the client of its response."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from edgeproxy.wire.ingress import HeadNote, Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Message, Receive, Send
from tests.wire.apps import END, OK, answer, echo, piece, read_body
from tests.wire.conftest import Serve


async def test_the_scope_is_the_request(serve: Serve) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await answer(send, b"")

    edge = await serve(app, state={"shared": 1})
    client = await edge.connect()
    before = time.monotonic()
    await client.send(b"GET /a%20%C3%A9?b=%20 HTTP/1.1\r\nHost: h\r\nX-Y: z\r\n\r\n")
    await client.answer()
    (scope,) = scopes
    own: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "https" if edge.tls else "http",
        "path": "/a é",
        "raw_path": b"/a%20%C3%A9",
        "query_string": b"b=%20",
        "root_path": "",
        "headers": [(b"host", b"h"), (b"x-y", b"z")],
        "server": ("127.0.0.1", edge.port),
        "state": {"shared": 1},
    }
    assert {key: scope[key] for key in own} == own
    assert scope["client"][0] == "127.0.0.1"
    found = ingress(scope)
    assert found is not None
    assert found.protocol == "h1"
    assert before <= found.first_byte <= time.monotonic()


async def test_each_request_gets_its_own_copy_of_the_state(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen = b"dirty" if "mark" in scope["state"] else b"clean"
        scope["state"]["mark"] = True
        await answer(send, seen)

    edge = await serve(app)
    client = await edge.connect()
    for _ in range(2):
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer()).body == b"clean"


async def test_first_byte_is_that_of_the_request_and_not_of_its_end(serve: Serve) -> None:
    first_bytes: list[float] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = ingress(scope)
        assert found is not None
        first_bytes.append(found.first_byte)
        await echo(scope, receive, send)

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
    assert (await client.read_head())[0] == 100
    between = time.monotonic()
    await client.send(b"xGET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await client.answer()
    await client.answer()
    assert first_bytes[0] < between < first_bytes[1]


async def test_requests_whose_heads_differ_in_their_length_alone_have_one_note(serve: Serve) -> None:
    notes: list[HeadNote | None] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found = ingress(scope)
        assert found is not None
        notes.append(found.note)
        await echo(scope, receive, send)

    edge = await serve(app)
    client, other = await edge.connect(), await edge.connect()
    for one, key, body in ((client, b"a", b"1"), (client, b"a", b"22"), (client, b"b", b"1"), (other, b"b", b"1")):
        head = b"POST / HTTP/1.1\r\nHost: h\r\nAuthorization: %b\r\nContent-Length: %d\r\n\r\n" % (key, len(body))
        await one.send(head + body)
        await one.answer()
    same, again, changed, elsewhere = notes
    assert same is not None
    assert same is again
    assert len({same, changed, elsewhere}) == 3


async def test_a_request_in_single_bytes_is_the_same_request(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    for byte in b"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.answer()).body == b"POST /a abc"


async def test_a_connection_serves_many_requests_one_after_another(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    for number in range(5):
        await client.send(b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx" % number)
        reply = await client.answer()
        assert reply.body == b"POST /%d x" % number
        assert reply["connection"] is None
    assert edge.listener.counts["accepted"] == 1


async def test_a_body_sent_with_an_offer_to_upgrade_is_kept_and_the_offer_ignored(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    for _ in range(2):
        await client.send(b"POST /up HTTP/1.1\r\nHost: h\r\n" + offer + b"Content-Length: 3\r\n\r\nabc")
        assert (await client.answer()).body == b"POST /up abc"


async def test_continue_is_sent_once_the_application_reads(serve: Serve) -> None:
    reading = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await reading.wait()
        await echo(scope, receive, send)

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    reading.set()
    assert await client.read_head() == (100, [])
    await client.send(b"abc")
    assert (await client.answer()).body == b"POST / abc"


async def test_an_application_that_does_not_want_the_body_sends_no_continue(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"no", 403)

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    reply = await client.answer()
    assert (reply.status, reply["connection"]) == (403, "close")


# ---- responses


async def test_head_gets_the_head_of_the_response_only(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    await client.send(b"HEAD /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n")
    reply = await client.answer(to_head=True)
    assert reply["content-length"] == str(len(b"HEAD /a "))
    assert (await client.answer()).body == b"GET /b "


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_body_has_none_even_if_the_application_sends_one(serve: Serve, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"stray", status)

    edge = await serve(app)
    client = await edge.connect()
    for _ in range(2):
        await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        reply = await client.answer()
        assert (reply.status, reply["transfer-encoding"]) == (status, None)


async def test_a_body_of_unknown_length_is_chunked_and_each_piece_is_sent_at_once(serve: Serve) -> None:
    taken = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b"one"))
        await taken.wait()
        await send(piece(b""))
        await send(piece(b"two"))
        await send(END)

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    _, headers = await client.read_head()
    assert ("transfer-encoding", "chunked") in headers
    assert await client.read_chunk() == b"one"
    taken.set()
    assert await client.read_chunk() == b"two"
    assert await client.read_chunk() == b""


async def test_an_empty_first_piece_sends_the_head_alone(serve: Serve) -> None:
    seen = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b""))
        await seen.wait()
        await send({"type": "http.response.body", "body": b"body"})

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.read_head())[0] == 200
    seen.set()
    assert await client.read_chunk() == b"body"


async def test_http_1_0_without_a_length_ends_with_the_connection(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b"one"))
        await send(piece(b"two"))
        await send(END)

    edge = await serve(app)
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    reply = await client.answer()
    assert (reply.body, reply["transfer-encoding"]) == (b"onetwo", None)


async def test_http_1_0_keep_alive_is_granted_where_the_length_is_known(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect()
    await client.send(b"GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert (await client.answer())["connection"] == "keep-alive"
    await client.send(b"GET /2 HTTP/1.0\r\n\r\n")
    assert (await client.answer())["connection"] == "close"
    assert await client.closed()


@pytest.mark.parametrize("by", ["client", "application"])
async def test_either_side_can_ask_for_a_close(serve: Serve, by: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"bye", 200, *([(b"Connection", b"close")] if by == "application" else []))

    edge = await serve(app)
    client = await edge.connect()
    await client.send(
        b"GET / HTTP/1.1\r\nHost: h\r\n" + (b"Connection: close\r\n" if by == "client" else b"") + b"\r\n"
    )
    reply = await client.answer()
    assert (reply.body, reply["connection"]) == (b"bye", "close")
    assert await client.closed()


async def test_alt_svc_is_told_over_tls_only(serve: Serve) -> None:
    edge = await serve(echo, alt_svc=b'h3=":8443"; ma=300')
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.answer())["alt-svc"] == ('h3=":8443"; ma=300' if edge.tls else None)


async def test_a_response_is_dated_once(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"", 200, *([(b"date", b"then")] if scope["path"] == "/own" else []))

    edge = await serve(app)
    client = await edge.connect()
    for path, expected in ((b"/own", "then"), (b"/", None)):
        await client.send(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        date = (await client.answer())["date"]
        assert date is not None
        assert expected in (None, date)


async def test_head_and_first_piece_arrive_in_one_write(serve_plain: Serve) -> None:
    edge = await serve_plain(echo)
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    await client.read(1)
    rest = await client._reader.read(65536)
    assert rest.endswith(b"GET / ")


async def test_the_application_may_answer_before_it_reads_a_body_that_is_there(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"early")
        assert (await receive())["type"] == "http.disconnect"

    edge = await serve(app)
    client = await edge.connect()
    for _ in range(2):
        await client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
        reply = await client.answer()
        assert (reply.body, reply["connection"]) == (b"early", None)


async def test_wire_errors_are_openai_shaped_and_close(serve: Serve) -> None:
    edge = await serve(echo, Limits(head_bytes=500))
    for request, status in (
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 600 + b"\r\n\r\n", 431),
        (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505),
        (b"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n", 505),
    ):
        client = await edge.connect()
        await client.send(request)
        reply = await client.answer()
        assert (reply.status, reply["connection"], reply["content-type"]) == (status, "close", "application/json")
        assert reply.error()["type"] == ("invalid_request_error" if status < 500 else "server_error")
        edge.later(Limits().linger_s)
        assert await client.closed()


async def test_messages_out_of_order_are_errors_of_the_application(serve_plain: Serve) -> None:
    wrong: list[Message] = [END, {"type": "http.response.trailers"}]
    raised: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        for message in wrong:
            with pytest.raises(RuntimeError) as caught:
                await send(message)
            raised.append(str(caught.value))
        await send(OK)
        with pytest.raises(RuntimeError):
            await send(OK)
        await send(END)
        with pytest.raises(RuntimeError):
            await send(END)

    edge = await serve_plain(app)
    client = await edge.connect()
    await client.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await client.answer()).status == 200
    assert len(raised) == 2
