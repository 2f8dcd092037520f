"""What an application and its client may rely on, whichever of h1, h2 and h3 is between them."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from edgeproxy.wire.ingress import Ingress, Scope, ingress
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.service import Receive, Send
from edgeproxy.wire.tls import DevCertificate
from tests.wire.apps import OK, Watcher, answer, echo, piece, read_body
from tests.wire.raw import PATIENCE_S
from tests.wire.talkers import Serve, Talker, listen


@pytest.fixture(params=["h1", "h2", "h3"])
async def serve(request: pytest.FixtureRequest, certificate: DevCertificate) -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:
        yield functools.partial(listen, stack, request.param, certificate)


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


async def connected(serve: Serve, app: Any, limits: Limits | None = None) -> Talker:
    return await (await serve(app, limits)).connect()


# ---- requests


@pytest.mark.parametrize("method", ["GET", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/", "//", "/a//b/", "/caf%C3%A9", "/?q=1", "/%2e%2e/x"])
async def test_method_and_path_arrive_as_they_were_sent(serve: Serve, method: str, path: str) -> None:
    client = await connected(serve, echo)
    await client.ask(method, path)
    found = await client.answer()
    assert (found.status, found.whole) == (200, True)
    assert found.body == f"{method} {path.partition('?')[0]} ".encode()


@pytest.mark.parametrize("declared", [True, False], ids=["length", "open-ended"])
async def test_a_body_in_pieces_arrives_whole(serve: Serve, declared: bool) -> None:
    client = await connected(serve, echo)
    await client.ask("POST", "/", *([("content-length", "9")] if declared else []), end=False)
    for data, end in ((b"one", False), (b"two", False), (b"six", True)):
        await client.send(data, end=end)
    assert (await client.answer()).body == b"POST / onetwosix"


async def test_when_the_last_byte_came_is_known_apart_from_the_first(serve: Serve) -> None:
    asked = asyncio.Event()
    found: list[Ingress] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        known = ingress(scope)
        assert known is not None
        found.append(known)
        asked.set()
        await read_body(receive)
        await answer(send, b"")

    client = await connected(serve, app)
    await client.ask("POST", "/", ("content-length", "4"), end=False)
    await soon(asked)
    between = time.monotonic()
    await client.send(b"late", end=True)
    await client.answer()
    assert found[0].first_byte <= between <= found[0].last_byte <= time.monotonic()


async def test_requests_follow_one_another_on_a_connection(serve: Serve) -> None:
    client = await connected(serve, echo)
    for number in range(50):
        await client.ask("POST", f"/{number}", ("content-length", "2"), end=False)
        await client.send(b"hi", end=True)
        assert (await client.answer()).body == f"POST /{number} hi".encode()


async def test_a_client_that_asks_first_is_told_to_continue(serve: Serve) -> None:
    client = await connected(serve, echo)
    await client.ask("POST", "/", ("expect", "100-continue"), ("content-length", "2"), end=False)
    await client.send(b"ok", end=True)
    assert (await client.answer()).body == b"POST / ok"


async def test_the_scope_says_who_asks_over_what_and_carries_the_state(serve: Serve) -> None:
    scopes: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scopes.append(scope)
        await answer(send, b"")

    listening = await serve(app)
    client = await listening.connect()
    before = time.monotonic()
    for _ in range(2):
        await client.ask("GET", "/x?y", ("x-one", "1"), ("cookie", "a=1"))
        await client.answer()
    one, two = scopes
    known = ingress(one)
    assert known is not None
    assert known.protocol == listening.name
    assert before <= known.first_byte <= time.monotonic()
    assert (one["type"], one["scheme"], one["query_string"]) == ("http", "https", b"y")
    assert dict(one["headers"])[b"host"]
    assert dict(one["headers"])[b"x-one"] == b"1"
    assert one["client"][0] == one["server"][0] == "127.0.0.1"
    assert one["state"] == two["state"]
    assert one["state"] is not two["state"]


# ---- answers


async def test_a_stream_arrives_piece_by_piece(serve: Serve) -> None:
    seen = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b"first"))
        await soon(seen)
        await send({"type": "http.response.body", "body": b" and last"})

    client = await connected(serve, app)
    await client.ask("GET", "/")
    await client.until_body(5)
    seen.set()
    assert (await client.answer()).body == b"first and last"


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_what_has_no_body_gets_none(serve: Serve, method: str, status: int) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"never", status)

    client = await connected(serve, app)
    for _ in range(2):  # what came after would be taken for the next answer
        await client.ask(method, "/")
        found = await client.answer(to_head=method == "HEAD")
        assert (found.status, found.body, found.whole) == (status, b"", True)


async def test_an_answer_before_the_end_of_the_request_arrives(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, b"enough", 403)

    client = await connected(serve, app)
    await client.ask("POST", "/", ("content-length", "1000"), end=False)
    await client.send(b"some", end=False)
    found = await client.answer()
    assert (found.status, found.body) == (403, b"enough")


async def test_a_large_answer_is_whole(serve: Serve) -> None:
    body = bytes(range(256)) * 2000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, body)

    client = await connected(serve, app)
    await client.ask("GET", "/")
    assert (await client.answer()).body == body


# ---- failures


class Broken:
    """Fails in the way that the path names."""

    def __init__(self) -> None:
        self.request_ids: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        known = ingress(scope)
        assert known is not None
        known.request_id = b"req_mine"
        how = scope["path"]
        if how == "/returns":
            return
        if how == "/start-only":
            await send(OK)
            return
        if how == "/raises":
            raise ZeroDivisionError
        if how == "/twice":
            await send(OK)
            await send(OK)
        if how == "/short":
            await answer(send, b"12345", 200, (b"content-length", b"9"))
        if how == "/later":
            await send(OK)
            await send(piece(b"12345"))
            raise ZeroDivisionError
        if how == "/header":
            await answer(send, b"", 200, (b"x", b"a\r\nset-cookie: b"))


@pytest.mark.parametrize("how", ["returns", "start-only", "raises", "twice", "header"])
async def test_a_failure_before_the_answer_is_an_error_that_can_be_reported(serve: Serve, how: str) -> None:
    client = await connected(serve, Broken())
    await client.ask("GET", f"/{how}")
    found = await client.answer()
    assert (found.status, found.error()["code"]) == (500, "internal_error")
    assert found.headers["x-request-id"] == "req_mine", "by which the application knows it"


@pytest.mark.parametrize("how", ["short", "later"])
async def test_a_failure_in_the_answer_never_looks_like_its_end(serve: Serve, how: str) -> None:
    client = await connected(serve, Broken())
    await client.ask("GET", f"/{how}")
    found = await client.answer()
    assert not found.whole or (found.status, found.error()["code"]) == (500, "internal_error")


# ---- limits


LIMITS = Limits(body_bytes=1000, headers=20, head_bytes=4096, target_bytes=200)


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/", [("content-length", "1001")], 413),
        ("/", [(f"x-{number}", "1") for number in range(30)], 431),
        ("/" + "a" * 300, [], 414),
    ],
    ids=["body", "fields", "target"],
)
async def test_what_is_too_large_is_named_and_has_an_id(
    serve: Serve, path: str, fields: list[tuple[str, str]], status: int
) -> None:
    calls: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope["path"])
        await answer(send, b"")

    client = await connected(serve, app, LIMITS)
    await client.ask("POST", path, *fields)
    found = await client.answer()
    assert found.status == status
    assert found.error()["code"]
    assert found.headers["x-request-id"].startswith("req_")
    assert not calls


async def test_a_body_that_grows_too_large_is_a_413(serve: Serve) -> None:
    reading, gone = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reading.set()
        try:
            await read_body(receive)
        except ConnectionError:
            gone.set()
            raise

    client = await connected(serve, app, LIMITS)
    await client.ask("POST", "/", end=False)
    await soon(reading)
    await client.send(bytes(1500), end=False)
    assert (await client.answer()).status == 413
    await soon(gone)


async def test_an_upload_that_stalls_is_a_408(serve: Serve) -> None:
    reading = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reading.set()
        await read_body(receive)

    listening = await serve(app)
    client = await listening.connect()
    await client.ask("POST", "/", ("content-length", "10"), end=False)
    await soon(reading)
    await asyncio.sleep(0)
    listening.sweep(time.monotonic() + Limits().stalled_read_s + 1)
    assert (await client.answer()).status == 408


# ---- leaving


@pytest.mark.parametrize("streams", [False, True], ids=["waits", "streams"])
async def test_a_client_that_leaves_is_noticed(serve: Serve, streams: bool) -> None:
    watcher = Watcher(streams=streams)
    client = await connected(serve, watcher)
    await client.ask("GET", "/")
    await soon(watcher.running)
    await client.leave()
    for event in (watcher.told, watcher.disconnected, watcher.send_raised):
        await soon(event)
    assert watcher.calls == 1


async def test_an_application_that_ignores_the_leaving_is_cancelled(serve: Serve) -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    client = await connected(serve, app, Limits(cancel_grace_s=0))
    await client.ask("GET", "/")
    await soon(running)
    await client.leave()
    await soon(cancelled)


async def test_after_its_answer_an_application_is_told_that_it_is_over(serve: Serve) -> None:
    over = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        await answer(send, b"done")
        assert (await receive())["type"] == "http.disconnect"
        known = ingress(scope)
        assert known is not None
        assert not known.gone, "an end is no leaving"
        over.set()

    client = await connected(serve, app)
    await client.ask("GET", "/")
    assert (await client.answer()).body == b"done"
    await soon(over)


async def test_an_answer_that_a_drain_cuts_off_can_still_say_so(serve: Serve) -> None:
    running, stopped = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(receive)
        known = ingress(scope)
        assert known is not None
        known.on_stop = stopped.set
        await send(OK)
        await send(piece(b"begun, "))
        running.set()
        await stopped.wait()
        assert not known.gone, "the client is still there"
        known.on_stop = None
        await send({"type": "http.response.body", "body": b"stopped"})

    listening = await serve(app)
    client = await listening.connect()
    await client.ask("GET", "/")
    await soon(running)
    await listening.drain(0)
    found = await client.answer()
    assert (found.body, found.whole) == (b"begun, stopped", True)


async def test_a_body_that_the_listener_refuses_is_told_to_the_application(serve: Serve) -> None:
    told = asyncio.Event()
    requests: list[Ingress] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        known = ingress(scope)
        assert known is not None
        requests.append(known)
        while (await receive())["type"] == "http.request":
            pass
        assert known.refused is not None
        assert known.refused.status == 408
        told.set()

    listening = await serve(app)
    client = await listening.connect()
    await client.ask("POST", "/", ("content-length", "100"), end=False)
    await client.send(b"an octet", end=False)
    async with asyncio.timeout(PATIENCE_S):
        while not requests:  # noqa: ASYNC110 - a list, not an event
            await asyncio.sleep(0.001)
        later = time.monotonic()
        while requests[0].refused is None:
            later += 1000
            listening.sweep(later)
            await asyncio.sleep(0.001)
    await soon(told)
    assert (await client.answer()).status == 408
