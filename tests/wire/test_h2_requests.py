"""HTTP/2 requests and responses, many at once on one connection."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from h2.errors import ErrorCodes
from hyperframe.frame import DataFrame

from edgeproxy.wire.ingress import Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import END, OK, answer, echo, piece
from tests.wire.conftest import Serve
from tests.wire.h2_client import Reply


async def test_the_scope_is_the_request(serve: Serve) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await answer(send, b"")

    edge = await serve(app, state={"shared": 1})
    client = await edge.connect_h2()
    before = time.monotonic()
    await client.answer(client.request("GET", "/a%20b?q", ("x-y", "z"), ("cookie", "a=1"), ("cookie", "b=2")))
    own: dict[str, Any] = {
        "type": "http",
        "http_version": "2",
        "method": "GET",
        "scheme": "https" if edge.tls else "http",
        "path": "/a b",
        "raw_path": b"/a%20b",
        "query_string": b"q",
        "headers": [(b"host", b"h"), (b"x-y", b"z"), (b"cookie", b"a=1; b=2")],
        "server": ("127.0.0.1", edge.port),
        "state": {"shared": 1},
    }
    assert {key: scopes[0][key] for key in own} == own
    found = ingress(scopes[0])
    assert found is not None
    assert found.protocol == "h2"
    assert before <= found.first_byte <= time.monotonic()
    rtt = found.rtt()
    assert rtt is not None
    assert 0 < rtt < 1


async def test_a_body_in_pieces_is_echoed(serve: Serve) -> None:
    edge = await serve(echo, Limits(unread_body_bytes=1000))
    client = await edge.connect_h2()
    body = bytes(range(256)) * 1000
    stream = client.request("POST", "/p", end=False)
    await client.send(stream, body)
    reply = await client.answer(stream)
    assert reply.body == b"POST /p " + body


async def test_requests_on_one_connection_do_not_wait_for_each_other(serve: Serve) -> None:
    last_begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/49":
            last_begun.set()
        await last_begun.wait()
        await echo(scope, receive, send)

    edge = await serve(app)
    client = await edge.connect_h2()
    streams = {client.request(path=f"/{n}"): n for n in range(50)}
    for stream, n in streams.items():
        assert (await client.answer(stream)).body == b"GET /%d " % n


async def test_each_piece_of_a_response_is_sent_at_once(serve: Serve) -> None:
    taken = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b"one"))
        await taken.wait()
        await send(piece(b"two"))
        await send(END)

    edge = await serve(app)
    client = await edge.connect_h2()
    stream = client.request()
    while client.replies[stream].body != b"one":
        await client.step()
    taken.set()
    assert (await client.answer(stream)).body == b"onetwo"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_what_has_no_body_gets_none(serve: Serve, method: str, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"stray", status)

    edge = await serve(app)
    client = await edge.connect_h2()
    reply = await client.answer(client.request(method))
    assert (reply.status, reply.body, reply.reset) == (status, b"", None)


async def test_connection_headers_of_the_application_are_left_out(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"x", 200, (b"Connection", b"close"), (b"transfer-encoding", b"chunked"), (b"X-Y", b"z"))

    edge = await serve(app, alt_svc=b'h3=":1"')
    client = await edge.connect_h2()
    reply = await client.get()
    assert reply.headers.keys() - {"alt-svc"} == {":status", "x-y", "date"}
    assert reply.headers.get("alt-svc") == ('h3=":1"' if edge.tls else None)


async def test_continue_is_sent_once_the_application_reads(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect_h2()
    stream = client.request("POST", "/", ("expect", "100-continue"), end=False)
    while not client.replies[stream].informational:
        await client.step()
    await client.send(stream, b"abc")
    reply = await client.answer(stream)
    assert (reply.informational, reply.body) == (["100"], b"POST / abc")


async def test_trailers_of_a_request_are_dropped(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect_h2()
    stream = client.request("POST", "/", end=False)
    await client.send(stream, b"abc", end=False)
    client.h2.send_headers(stream, [("x-trailer", "1")], end_stream=True)
    client.flush()
    assert (await client.answer(stream)).body == b"POST / abc"


async def test_a_host_without_authority_is_the_authority(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, dict(scope["headers"])[b"host"])

    edge = await serve(app)
    client = await edge.connect_h2()
    other = client.h2.get_next_available_stream_id()
    client.h2.config.validate_outbound_headers = False
    client.h2.send_headers(other, [(":method", "GET"), (":scheme", "https"), (":path", "/"), ("host", "named")], True)
    client.replies[other] = Reply()
    client.flush()
    assert (await client.answer(other)).body == b"named"


MALFORMED: dict[str, list[tuple[str, str]]] = {
    "host beside authority": [("host", "other")],
    "connection field": [("connection", "keep-alive")],
    "trailing space": [("x-a", "b ")],
    "upper case": [("X-A", "b")],
    "line break": [("x-a", "b\r\nc: d")],
    "late pseudo-header": [("x", "y"), (":scheme", "https")],
    "unknown pseudo-header": [(":protocol", "websocket")],
    "length that is none": [("content-length", "five")],
    "two lengths": [("content-length", "4"), ("content-length", "4")],
    "longer than its body": [("content-length", "5")],
    "shorter than its body": [("content-length", "3")],
}


@pytest.mark.parametrize("kind", MALFORMED)
async def test_a_malformed_request_ends_alone(serve_plain: Serve, kind: str) -> None:
    """An error of its stream (RFC 9113 section 8.1.1): who shares the connection notices nothing."""
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/other":
            await send(OK)
            await send(piece(b"begun, "))
            await go.wait()
            await send({"type": "http.response.body", "body": b"ended"})
        else:
            await echo(scope, receive, send)

    edge = await serve_plain(app)
    client = await edge.connect_h2()
    other = client.request(path="/other")
    while client.replies[other].body != b"begun, ":
        await client.step()
    client.h2.config.validate_outbound_headers = client.h2.config.normalize_outbound_headers = False
    bad = client.request("POST", "/", *MALFORMED[kind], end=False)
    client.write(DataFrame(bad, b"four", flags=["END_STREAM"]).serialize())
    assert (await client.answer(bad)).reset == ErrorCodes.PROTOCOL_ERROR
    go.set()
    assert (await client.answer(other)).body == b"begun, ended"
    assert (await client.get("/next")).status == 200


@pytest.mark.parametrize(("fields", "flags"), [([(b"x", b"y")], 4), ([(b":path", b"/")], 5), ([(b"te", b"x")], 5)])
async def test_malformed_trailers_end_their_stream_alone(
    serve_plain: Serve, fields: list[tuple[bytes, bytes]], flags: int
) -> None:
    edge = await serve_plain(echo)
    client = await edge.connect_h2()
    stream = client.request("POST", "/", end=False)
    block = client.h2.encoder.encode(fields)
    client.write(len(block).to_bytes(3, "big") + bytes([1, flags]) + stream.to_bytes(4, "big") + block)
    assert (await client.answer(stream)).reset == ErrorCodes.PROTOCOL_ERROR
    assert (await client.get()).status == 200


async def test_who_opens_more_streams_than_there_may_be_is_refused_these_alone(serve_plain: Serve) -> None:
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await go.wait()
        await answer(send, b"whole")

    edge = await serve_plain(app, Limits(streams_per_connection=2))
    client = await edge.connect_h2()
    streams = [client.request() for _ in range(4)]  # before the server's settings are here
    for refused in streams[2:]:
        assert (await client.answer(refused)).reset == ErrorCodes.REFUSED_STREAM
    go.set()
    for served in streams[:2]:
        assert (await client.answer(served)).body == b"whole"


async def test_connect_is_refused_on_its_stream(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect_h2()
    tunnel = client.h2.get_next_available_stream_id()
    client.h2.send_headers(tunnel, [(":method", "CONNECT"), (":authority", "h:1")])
    client.replies[tunnel] = Reply()
    client.flush()
    assert (await client.answer(tunnel)).reset == ErrorCodes.PROTOCOL_ERROR
    assert (await client.get()).status == 200
