"""The client's side of a request. Nothing is sent before it is true: the status waits for the first content."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from time import monotonic
from typing import NamedTuple

import orjson

from edgeproxy.gateway.watch import ClientGone, Message, Send
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.headers import STREAM_HEADERS, Headers
from edgeproxy.protocol.openai.sse import MEDIA_TYPE, encode, encode_comment

KEEP_ALIVE_S = 10.0
_KEEP_ALIVE = encode_comment(b"keep-alive")
_EVENT_STREAM: Headers = [(b"content-type", MEDIA_TYPE + b"; charset=utf-8"), *STREAM_HEADERS]


class Whole(NamedTuple):
    """An answer that is complete: one JSON object, or an error."""

    status: int
    headers: Headers
    body: bytes
    code: str | None = None
    """Of an error that is the proxy's own."""


def whole(error: ApiError) -> Whole:
    return Whole(error.status, [(b"content-type", b"application/json"), *error.headers], error.body(), error.code)


class Answer:
    """Raises ClientGone from everything that sends."""

    _timer: asyncio.TimerHandle | None = None
    _comments: asyncio.Task[None] | None = None
    _lock: asyncio.Lock | None = None
    started = False
    handed_at: float | None = None
    """When the first bytes of a stream had been given to the listener (monotonic seconds)."""
    ended = False
    status = 0

    def __init__(self, send: Send, request_id: bytes, keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._send = send
        self.request_id = request_id
        self.fields: Headers = [(b"x-request-id", request_id)]
        """What goes with the head, whatever the answer is."""
        self._keep_alive_s = keep_alive_s

    def is_ended(self) -> bool:
        return self.ended

    def hold(self, seconds: float) -> None:
        """Commits to 200 after `seconds` without content, and comments from then on, so that nothing between the client
        and us takes the silence for death. Failover stays invisible; a failure is told in an event."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin_comments)

    async def begin(self, headers: Headers, body: bytes) -> None:
        """The first bytes of a stream. `headers` are lost on a client whose hold was too long."""
        await self.release()
        if not self.started:
            await self._start(200, headers)
        await self.write(body)
        if self.handed_at is None:  # not where another node goes on with a stream
            self.handed_at = monotonic()

    def pass_on(self, data: bytes) -> Awaitable[None]:
        """`write` without a coroutine of its own, for what comes by the token. OSError says that the client is gone."""
        return self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read."""
        try:
            await self.pass_on(data)
        except OSError as error:
            raise ClientGone from error

    async def end(self) -> None:
        await self._deliver({"type": "http.response.body", "body": b"", "more_body": False})

    async def give(self, answer: Whole) -> None:
        """A whole answer; an event of the stream where one has been begun, which then ends without `[DONE]`."""
        if self._timer is not None or self._comments is not None:
            await self.release()
        if self.started:
            await self.write(encode(_one_line(answer.body)))
            await self.end()
            return
        self.started, self.status = True, answer.status
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body)), *self.fields]
        try:
            await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
            self.ended = True
            await self._send({"type": "http.response.body", "body": answer.body})
        except OSError as error:
            raise ClientGone from error

    async def forward(self, message: Message) -> None:
        """ASGI `send` for an application that answers by itself."""
        if message["type"] == "http.response.start":
            await self._start(message["status"], list(message.get("headers", ())))
        else:
            await self._deliver(message)

    def close(self) -> None:
        """Nothing is sent any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._comments is not None:
            self._comments.cancel()

    async def release(self) -> None:
        """Ends the hold; what is sent from now on is the caller's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._comments is not None and self._lock is not None:
            async with self._lock:  # never in the middle of a comment
                self._comments.cancel()
            self._comments = None

    async def _start(self, status: int, headers: Headers) -> None:
        self.started = True
        self.status = status
        await self._deliver({"type": "http.response.start", "status": status, "headers": [*headers, *self.fields]})

    async def _deliver(self, message: Message) -> None:
        self.ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone from error

    def _begin_comments(self) -> None:
        self._lock = asyncio.Lock()
        self._comments = asyncio.get_running_loop().create_task(self._comment(self._lock))

    async def _comment(self, lock: asyncio.Lock) -> None:
        try:
            async with lock:
                await self._start(200, _EVENT_STREAM)
                await self.write(_KEEP_ALIVE)
            while True:
                await asyncio.sleep(self._keep_alive_s)
                async with lock:
                    await self.write(_KEEP_ALIVE)
        except ClientGone:
            pass  # the request's own task hears of it from receive()


def _one_line(body: bytes) -> bytes:
    """JSON as one line, as an event needs it; anything else becomes an error that says so."""
    try:
        return orjson.dumps(orjson.loads(body))
    except orjson.JSONDecodeError:
        return ApiError(502, "the node's answer was not JSON", "upstream_failed").body()
