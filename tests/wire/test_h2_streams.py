"""Windows, resets and failures of single streams, and what their neighbours feel of them: nothing."""

from __future__ import annotations

import asyncio

import pytest
from h2.errors import ErrorCodes

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import MIB, Limits
from edgeproxy.wire.service import Message, Receive, Send
from tests.wire.apps import OK, Watcher, answer, echo, piece, read_body
from tests.wire.conftest import Serve
from tests.wire.raw import PATIENCE_S


class Flood:
    def __init__(self) -> None:
        self.sent = 0
        self.raised = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/flood":
            await echo(scope, receive, send)
            return
        await send(OK)
        try:
            while True:
                await send(piece(bytes(1000)))
                self.sent += 1000
        except OSError:
            self.raised.set()
            raise


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("streams", [False, True], ids=["before the answer", "in the answer"])
async def test_a_client_that_gives_up_is_noticed_at_once(serve: Serve, how: str, streams: bool) -> None:
    watcher = Watcher(streams=streams)
    edge = await serve(watcher)
    client = await edge.connect_h2()
    stream = client.request()
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
        if how == "reset":
            client.reset(stream)
        else:
            await client.close()
        await watcher.disconnected.wait()
        await watcher.send_raised.wait()


async def test_send_waits_for_the_streams_window_and_other_streams_go_on(serve: Serve) -> None:
    flood = Flood()
    edge = await serve(flood)
    client = await edge.connect_h2(window=5000)
    client.takes = False
    stalled = client.request(path="/flood")
    while len(client.replies[stalled].body) < 5000:
        await client.step()
    assert flood.sent == 5000
    assert (await client.get("/other")).body == b"GET /other "
    assert flood.sent == 5000
    client.h2.increment_flow_control_window(3000, stalled)
    client.flush()
    while len(client.replies[stalled].body) < 8000:
        await client.step()


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_send_that_waits_for_a_window_raises_when_the_client_gives_up(serve: Serve, how: str) -> None:
    flood = Flood()
    edge = await serve(flood)
    client = await edge.connect_h2(window=1000)
    client.takes = False
    stream = client.request(path="/flood")
    while not client.replies[stream].body:
        await client.step()
    if how == "reset":
        client.reset(stream)
    else:
        await client.close()
    async with asyncio.timeout(PATIENCE_S):
        await flood.raised.wait()


async def test_a_stream_that_takes_nothing_is_reset_in_the_end(serve: Serve) -> None:
    flood = Flood()
    edge = await serve(flood, Limits(stalled_write_s=30))
    client = await edge.connect_h2(window=1000)
    client.takes = False
    stream = client.request(path="/flood")
    while not client.replies[stream].body:
        await client.step()
    edge.later(29)
    assert (await client.get("/other")).status == 200
    edge.later(31)
    assert (await client.answer(stream)).reset == ErrorCodes.CANCEL
    assert flood.raised.is_set()


async def test_a_client_that_does_not_read_its_connection_holds_up_the_send(serve: Serve) -> None:
    flood = Flood()
    edge = await serve(flood)
    client = await edge.connect_h2(window=2**30)
    client.h2.increment_flow_control_window(2**30)
    client.flush()
    client.request(path="/flood")
    client.stop_reading()
    last = -1
    async with asyncio.timeout(PATIENCE_S):
        while last != flood.sent:
            last = flood.sent
            await asyncio.sleep(0.1)
    assert 0 < flood.sent < 16 * MIB


async def test_an_upload_that_is_not_read_stops_at_its_window_and_others_go_on(serve: Serve) -> None:
    read = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/unread":
            await read.wait()
        await answer(send, b"%d" % len(await read_body(receive)))

    edge = await serve(app, Limits(unread_body_bytes=65536))
    client = await edge.connect_h2()
    await client.get()  # the server's settings are there
    unread = client.request("POST", "/unread", end=False)
    await client.send(unread, bytes(65536), end=False)
    other = client.request("POST", "/other", end=False)
    await client.send(other, bytes(2 * MIB))
    assert (await client.answer(other)).body == b"%d" % (2 * MIB)
    assert client.h2.local_flow_control_window(unread) == 0
    read.set()
    await client.send(unread, bytes(65536))
    assert (await client.answer(unread)).body == b"131072"


async def test_uploads_that_are_given_up_return_their_window(serve: Serve) -> None:
    """Else a few resets would leave the connection without any window for others."""
    never = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/unread":
            await never.wait()
        await answer(send, b"%d" % len(await read_body(receive)))

    edge = await serve(app, Limits(cancel_grace_s=0))
    client = await edge.connect_h2()
    await client.get()
    for _ in range(40):
        stream = client.request("POST", "/unread", end=False)
        await client.send(stream, bytes(60_000), end=False)
        client.reset(stream)
    other = client.request("POST", "/other", end=False)
    await client.send(other, bytes(MIB))
    assert (await client.answer(other)).body == b"%d" % MIB


# ---- early answers and limits


async def test_an_early_answer_arrives_and_the_rest_of_the_body_is_dropped(serve: Serve) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"no", 403)

    edge = await serve(refuse)
    client = await edge.connect_h2()
    stream = client.request("POST", "/", end=False)
    reply = await client.answer(stream)
    assert (reply.status, reply.body, reply.reset) == (403, b"no", None)
    await client.send(stream, bytes(200_000))
    while not client.pings:  # some clients wait for a frame after the end of such an upload
        await client.step()
    assert (await client.get()).status == 403


async def test_a_body_that_goes_on_after_the_answer_is_reset_without_an_error(serve: Serve) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"no", 403)

    edge = await serve(refuse, Limits(linger_s=2, linger_bytes=100_000))
    client = await edge.connect_h2()
    slow, fast = client.request("POST", "/", end=False), client.request("POST", "/", end=False)
    assert (await client.answer(slow)).status == (await client.answer(fast)).status == 403
    with pytest.raises(ConnectionError):
        await client.send(fast, bytes(MIB))
    assert client.replies[fast].reset == ErrorCodes.NO_ERROR
    edge.later(2)
    while client.replies[slow].reset is None:
        await client.step()
    assert client.replies[slow].reset == ErrorCodes.NO_ERROR


async def test_limits_are_answered_on_their_stream(serve: Serve) -> None:
    edge = await serve(echo, Limits(body_bytes=1000, headers=20, stalled_read_s=30))
    client = await edge.connect_h2()
    announced = client.request("POST", "/", ("content-length", "1001"), end=False)
    unannounced = client.request("POST", "/", end=False)
    await client.send(unannounced, bytes(1001), end=False)
    many = client.request("GET", "/", *[("x", "y")] * 20)
    silent = client.request("POST", "/", ("expect", "100-continue"), end=False)
    while not client.replies[silent].informational:
        await client.step()
    edge.later(31)
    for stream, status in ((announced, 413), (unannounced, 413), (many, 431), (silent, 408)):
        reply = await client.answer(stream)
        assert reply.status == status
        assert reply.error()["type"] == "invalid_request_error"
    assert (await client.get()).status == 200


# ---- failures of the application


@pytest.mark.parametrize("started", [False, True], ids=["before start", "start still held"])
async def test_a_failure_before_anything_was_sent_is_an_openai_error(serve: Serve, started: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if started:
            await send(OK)
        raise LookupError

    edge = await serve(app)
    client = await edge.connect_h2()
    reply = await client.get()
    assert (reply.status, reply.error()["code"]) == (500, "internal_error")


@pytest.mark.parametrize("failure", ["raises", "returns", "breaks its content-length"])
async def test_a_failure_in_the_response_resets_its_stream(serve: Serve, failure: str) -> None:
    start: Message = {**OK, "headers": [(b"content-length", b"100")] if failure.startswith("breaks") else []}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/good":
            await answer(send, b"good")
            return
        await send(start)
        await send(piece(b"part"))
        if failure == "raises":
            raise LookupError
        if failure.startswith("breaks"):
            await send({"type": "http.response.body", "body": b"short"})

    edge = await serve(app)
    client = await edge.connect_h2()
    reply = await client.get()
    assert (reply.ended, reply.reset) == (False, ErrorCodes.INTERNAL_ERROR)
    assert (await client.get("/good")).body == b"good"


async def test_streams_share_the_window_of_their_connection(serve: Serve) -> None:
    """Whoever waits longest comes first: no stream starves behind one that takes whatever the client gives."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        while True:
            await send(piece(bytes(65536)))

    edge = await serve(app)
    client = await edge.connect_h2(window=10_000_000)
    streams = [client.request() for _ in range(12)]
    while min(len(client.replies[stream].body) for stream in streams) < 100_000:
        await client.step()
    bodies = [len(client.replies[stream].body) for stream in streams]
    assert max(bodies) <= 2 * min(bodies) + 65536
