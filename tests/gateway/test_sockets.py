"""The gateway behind our own listener, and a real SDK in front of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import orjson
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from edgeproxy.config import Address
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tcp import TcpListener
from tests.gateway.drive import Edge, chat, edge
from tests.wire.raw import PATIENCE_S, RawClient

ASKED: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hello"}]
TEXT = "Hello, wörld 🌍"


@asynccontextmanager
async def listener_of(folder: Path) -> AsyncIterator[tuple[Edge, TcpListener]]:
    async with edge(folder) as e:
        listener = TcpListener(e.app, Limits(), ssl=None, alt_svc=lambda: None, state={})
        await listener.start(Address("127.0.0.1", 0))
        try:
            yield e, listener
        finally:
            await listener.drain(5.0)


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[tuple[Edge, int]]:
    async with listener_of(folder) as (e, listener):
        yield e, listener.port


@asynccontextmanager
async def sdk(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    http = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="unused", max_retries=0, http_client=http
    ) as client:
        yield client


async def test_sdk_gets_answer_stream_and_models(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, port), sdk(port) as client:
        answer = await client.chat.completions.create(model="ok", messages=ASKED)
        assert answer.choices[0].message.content == TEXT
        assert answer._request_id
        stream = await client.chat.completions.create(model="trickle-bytes", messages=ASKED, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == TEXT
        assert "ok" in [model.id async for model in client.models.list()]


async def test_sdk_raises_the_right_errors(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, port), sdk(port) as client:
        for model, kind in (
            ("gpt-4", openai.NotFoundError),
            ("400", openai.BadRequestError),
            ("500", openai.InternalServerError),
            ("429", openai.RateLimitError),
        ):
            with pytest.raises(kind):
                await client.chat.completions.create(model=model, messages=ASKED, stream=True)


async def test_sdk_raises_on_a_stream_that_dies(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, port), sdk(port) as client:
        stream = await client.chat.completions.create(model="cut-mid-utf8", messages=ASKED, stream=True)
        said = ""
        with pytest.raises(openai.APIError, match="broke off"):
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
        assert said == TEXT


async def test_sdk_that_closes_half_way_frees_the_node(tmp_path: Path) -> None:
    async with listening(tmp_path) as (e, port), sdk(port) as client:
        stream = await client.chat.completions.create(model="stall-after-3", messages=ASKED, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content == ", ":
                break
        await stream.close()
        await e.near.until(lambda: e.near.abandoned == ["stall-after-3"])


@pytest.mark.parametrize(("model", "stream"), [("slow", b"false"), ("slow", b"true"), ("role-then-stall", b"true")])
@pytest.mark.parametrize("reset", [False, True])
async def test_client_that_hangs_up_before_the_first_token_frees_the_node(
    tmp_path: Path, model: str, stream: bytes, reset: bool
) -> None:
    async with listening(tmp_path) as (e, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"model": "%s", "stream": %s}' % (model.encode(), stream)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        await e.near.until(lambda: e.near.seen == {model: 1})
        if reset:
            writer.transport.abort()
        else:
            writer.close()
        await e.near.until(lambda: e.near.abandoned == [model])
        assert e.in_flight == 0
        assert not reader.at_eof() or not await reader.read()


POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


async def test_a_stream_that_a_drain_cuts_off_says_so_and_its_client_has_not_left(tmp_path: Path) -> None:
    async with listener_of(tmp_path) as (e, listener):
        body = orjson.dumps(chat("stall-after-3", stream=True))
        client = await RawClient.connect(listener.port)
        await client.send(POST % len(body) + body)
        status, _ = await client.read_head()
        seen = await client.read_chunk()
        await listener.drain(0)
        while piece := await client.read_chunk():  # to the proper end of the body
            seen += piece
        last = orjson.loads(seen.rstrip().rpartition(b"data: ")[2])
        assert (status, last["error"]["code"]) == (200, "proxy_stopping")
        await client.close()
        (record,) = e.lines.requests
        assert (record["status"], record["code"], record["client_gone"]) == (200, "proxy_stopping", False)
        assert e.in_flight == 0


async def test_an_answer_that_had_not_begun_when_a_drain_ended_is_503(tmp_path: Path) -> None:
    async with listener_of(tmp_path) as (e, listener):
        body = orjson.dumps(chat("slow"))
        client = await RawClient.connect(listener.port)
        await client.send(POST % len(body) + body)
        async with asyncio.timeout(PATIENCE_S):
            while not e.near.chats:  # noqa: ASYNC110 - a list, not an event
                await asyncio.sleep(0.001)
        await listener.drain(0)
        reply = await client.answer()
        assert (reply.status, reply.error()["code"], reply["retry-after"]) == (503, "proxy_stopping", "1")
        await client.close()


async def test_a_body_that_does_not_come_is_logged_as_what_it_was_answered(tmp_path: Path) -> None:
    async with listener_of(tmp_path) as (e, listener):
        client = await RawClient.connect(listener.port)
        await client.send(POST % 100 + b"{")
        async with asyncio.timeout(PATIENCE_S):
            while not listener._service.tasks:  # noqa: ASYNC110 - a collection, not an event
                await asyncio.sleep(0.001)
        listener.sweep(time.monotonic() + 1000)
        assert (await client.answer()).status == 408
        (record,) = e.lines.requests
        assert (record["status"], record["code"], record["client_gone"]) == (408, "request_timeout", False)
        await client.close()
