"""libcurl and its nghttp2 as an independent client: what both ends of one library agree on may still be wrong."""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass
from typing import Any

import pycurl
import pytest

from edgeproxy.wire.ingress import Scope
from edgeproxy.wire.limits import MIB, Limits
from edgeproxy.wire.service import Receive, Send
from tests.wire.apps import OK, answer, echo, piece, read_body
from tests.wire.conftest import Edge, Serve


@dataclass(frozen=True, slots=True)
class Result:
    status: int
    body: bytes


def perform(edge: Edge, path: str, upload: bytes | None, options: dict[int, Any]) -> Result:
    body = io.BytesIO()
    handle = pycurl.Curl()
    handle.setopt(pycurl.URL, f"{'https' if edge.tls else 'http'}://localhost:{edge.port}{path}")
    handle.setopt(pycurl.RESOLVE, [f"localhost:{edge.port}:127.0.0.1"])
    version = pycurl.CURL_HTTP_VERSION_2_0 if edge.tls else pycurl.CURL_HTTP_VERSION_2_PRIOR_KNOWLEDGE
    handle.setopt(pycurl.HTTP_VERSION, version)
    if edge.trust is not None:
        handle.setopt(pycurl.CAINFO, str(edge.trust))
    if upload is not None:
        handle.setopt(pycurl.UPLOAD, 1)
        handle.setopt(pycurl.READDATA, io.BytesIO(upload))
    for option, value in options.items():
        handle.setopt(option, value)
    handle.setopt(pycurl.WRITEDATA, body)
    handle.setopt(pycurl.TIMEOUT, 20)
    try:
        handle.perform()
        return Result(handle.getinfo(pycurl.RESPONSE_CODE), body.getvalue())
    finally:
        handle.close()


async def curl(edge: Edge, path: str, upload: bytes | None = None, **options: Any) -> Result:
    named = {getattr(pycurl, name): value for name, value in options.items()}
    return await asyncio.to_thread(perform, edge, path, upload, named)


async def test_curl_gets_and_uploads(serve: Serve) -> None:
    versions: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        versions.append(scope["http_version"])
        await echo(scope, receive, send)

    edge = await serve(app)
    body = bytes(range(256)) * 4096
    assert await curl(edge, "/a?b") == Result(200, b"GET /a ")
    assert await curl(edge, "/up", body) == Result(200, b"PUT /up " + body)
    assert await curl(edge, "/known", body, INFILESIZE=len(body)) == Result(200, b"PUT /known " + body)
    assert await curl(edge, "/head", NOBODY=1) == Result(200, b"")
    assert set(versions) == {"2"}


async def test_curl_downloads_more_than_any_window(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        for _ in range(12):
            await send(piece(bytes(MIB)))
        await send({"type": "http.response.body", "body": b"end"})

    edge = await serve(app)
    reply = await curl(edge, "/")
    assert (reply.status, len(reply.body), reply.body[-3:]) == (200, 12 * MIB + 3, b"end")


async def test_curl_sees_an_answer_that_comes_before_its_upload_ends(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/early":
            await answer(send, b"no", 403)
        else:
            await answer(send, b"%d" % len(await read_body(receive)))

    edge = await serve(app, Limits(body_bytes=MIB))
    assert await curl(edge, "/early", bytes(3 * MIB)) == Result(403, b"no")
    assert (await curl(edge, "/long", bytes(3 * MIB))).status == 413
    assert (await curl(edge, "/long", bytes(3 * MIB), INFILESIZE=3 * MIB)).status == 413


async def test_curl_notices_a_cut_body(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(OK)
        await send(piece(b"part"))
        raise LookupError

    edge = await serve(app)
    with pytest.raises(pycurl.error):
        await curl(edge, "/")
