"""Floods, deadlines and the orderly end of an HTTP/2 connection."""

from __future__ import annotations

import asyncio

from h2.errors import ErrorCodes
from hyperframe.frame import ContinuationFrame, DataFrame, GoAwayFrame, HeadersFrame, PingFrame, SettingsFrame

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import Watcher, answer, echo
from tests.wire.conftest import Serve
from tests.wire.h2_client import H2Client
from tests.wire.raw import PATIENCE_S


async def calmed(client: H2Client) -> ErrorCodes:
    """The error of the GOAWAY with which the server closes; INTERNAL_ERROR where a TCP reset overtook it."""
    await client.until_closed()
    return client.goaways[-1][0] if client.goaways else ErrorCodes.INTERNAL_ERROR


async def test_rapid_resets_are_stopped(serve: Serve) -> None:
    begun = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await receive()
        await receive()

    edge = await serve(app, Limits(resets_burst=50, resets_per_s=0))
    client = await edge.connect_h2()
    await asyncio.sleep(0)
    for _ in range(200):
        client.reset(client.request())
    assert await calmed(client) in (ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.INTERNAL_ERROR)
    assert begun <= 51


async def test_a_request_reset_in_the_read_that_brought_it_never_begins(serve_plain: Serve) -> None:
    begun: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        await answer(send, b"")

    edge = await serve_plain(app)
    client = await edge.connect_h2()
    stream = client.h2.get_next_available_stream_id()
    client.h2.send_headers(
        stream, [(":method", "GET"), (":scheme", "http"), (":authority", "h"), (":path", "/reset")], end_stream=True
    )
    client.h2.reset_stream(stream)
    client.flush()
    assert (await client.get("/kept")).status == 200
    assert begun == ["/kept"]


async def test_streams_are_limited_by_those_whose_application_still_runs(serve: Serve) -> None:
    hold = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"")
        await hold.wait()

    edge = await serve(app, Limits(streams_per_connection=2))
    client = await edge.connect_h2()
    for _ in range(2):
        assert (await client.get()).status == 200
    assert (await client.get()).reset == ErrorCodes.REFUSED_STREAM
    hold.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await client.get()).status == 200


async def test_control_frame_floods_are_stopped(serve: Serve) -> None:
    settings = SettingsFrame(0).serialize()
    for flood in (PingFrame(0, opaque_data=bytes(8)).serialize() * 3000, settings * 3000):
        edge = await serve(echo)
        client = await edge.connect_h2()
        assert (await client.get()).status == 200
        client.write(flood)
        assert await calmed(client) in (ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.INTERNAL_ERROR)


async def test_a_flood_of_empty_data_is_stopped(serve: Serve) -> None:
    watcher = Watcher()
    edge = await serve(watcher)
    client = await edge.connect_h2()
    stream = client.request("POST", end=False)
    client.write(DataFrame(stream, b"").serialize() * 3000)
    assert await calmed(client) in (ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.INTERNAL_ERROR)


async def test_a_frame_beyond_its_limit_is_not_collected(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect_h2()
    assert (await client.get()).status == 200
    client.write(b"\xff\xff\xff\x00\x00\x00\x00\x00\x03" + bytes(40_000))
    assert await calmed(client) in (ErrorCodes.FRAME_SIZE_ERROR, ErrorCodes.INTERNAL_ERROR)


async def test_an_endless_head_is_not_collected(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect_h2()
    assert (await client.get()).status == 200
    client.write(HeadersFrame(3, b"").serialize() + ContinuationFrame(3, bytes(100)).serialize() * 200)
    await client.until_closed()


async def test_a_head_that_unpacks_beyond_its_limit_is_refused(serve: Serve) -> None:
    """One table entry, named many times: small on the wire, large in memory."""
    edge = await serve(echo, Limits(head_bytes=10_000))
    client = await edge.connect_h2()
    assert (await client.get()).status == 200
    client.request("GET", "/", *[("x-bomb", "y" * 3000)] * 50)
    await client.until_closed()


async def test_a_broken_preface_or_frame_closes_that_connection_only(serve: Serve) -> None:
    edge = await serve(echo)
    good = await edge.connect_h2()
    assert (await good.get()).status == 200
    bad = await edge.connect_h2()
    bad.write(SettingsFrame(0).serialize().replace(b"\0\0\0\x04", b"\0\0\x05\x04") + bytes(5))
    await bad.until_closed()
    assert (await good.get()).status == 200


# ---- deadlines


async def test_a_connection_without_a_request_is_closed(serve: Serve) -> None:
    edge = await serve(echo, Limits(first_byte_s=5, keep_alive_s=75))
    client = await edge.connect_h2()
    await client.step()
    edge.later(4)
    assert not client.closed
    edge.later(5.1)
    await client.until_closed()


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(serve: Serve) -> None:
    watcher = Watcher()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (watcher if scope["path"] == "/wait" else echo)(scope, receive, send)

    edge = await serve(app, Limits(keep_alive_s=75))
    idle, busy = await edge.connect_h2(), await edge.connect_h2()
    assert (await idle.get()).status == 200
    busy.request(path="/wait")
    async with asyncio.timeout(PATIENCE_S):
        await watcher.running.wait()
    edge.later(74)
    assert (await idle.get()).status == 200
    edge.later(76)
    await idle.until_closed()
    assert (await busy.get()).status == 200


# ---- the end


async def test_drain_lets_streams_end_and_refuses_later_ones_for_sure(serve: Serve) -> None:
    go, running = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        running.set()
        await go.wait()
        await answer(send, b"whole")

    edge = await serve(app)
    client = await edge.connect_h2()
    stream = client.request()
    async with asyncio.timeout(PATIENCE_S):
        await running.wait()
    drain = asyncio.create_task(edge.listener.drain(PATIENCE_S))
    while not client.goaways:
        await client.step()
    between = client.request()
    while len(client.goaways) < 2:
        await client.step()
    late = client.request()
    assert client.goaways == [(ErrorCodes.NO_ERROR, 2**31 - 1), (ErrorCodes.NO_ERROR, between)]
    assert (await client.answer(late)).reset == ErrorCodes.REFUSED_STREAM
    go.set()
    for served in (stream, between):
        assert (await client.answer(served)).body == b"whole"
    await client.until_closed()
    await drain


async def test_drain_closes_an_idle_connection_at_once(serve: Serve) -> None:
    edge = await serve(echo)
    client = await edge.connect_h2()
    for _ in range(
        2
    ):  # after the second, nothing of the client's is on its way, which would turn the close into a reset
        assert (await client.get()).status == 200
    async with asyncio.timeout(PATIENCE_S):
        await edge.listener.drain(PATIENCE_S)
    await client.until_closed()
    assert client.goaways == [(ErrorCodes.NO_ERROR, 3)]


async def test_a_client_that_goes_away_still_gets_its_answers(serve: Serve) -> None:
    go, running = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        running.set()
        await go.wait()
        await answer(send, b"whole")

    edge = await serve(app)
    client = await edge.connect_h2()
    stream = client.request()
    async with asyncio.timeout(PATIENCE_S):
        await running.wait()
    client.write(GoAwayFrame(0, last_stream_id=0).serialize())
    go.set()
    assert (await client.answer(stream)).body == b"whole"
    await client.until_closed()
