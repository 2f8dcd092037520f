"""One HTTP/1.1 request and its answer: `receive` and `send` of one application call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.h1_response import CONTINUE, Framing, encode_error, encode_head
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.service import ClientGone, Message, Service

_log = logging.getLogger(__name__)


class Carrier(Protocol):
    """The connection under an exchange."""

    write_paused: bool

    def write(self, data: bytes) -> None: ...

    async def writable(self) -> None:
        """Return once the client has taken enough of what was written, or is gone."""

    def body_taken(self) -> None:
        """The application has read everything that had arrived."""

    def answered(self, *, close: bool) -> None:
        """The whole response is written."""

    def cut(self, *, reset: bool) -> None:
        """End the connection so that the client cannot take what it has for a whole response."""

    def is_last_request(self) -> bool:
        """No request after the running one will be answered on this connection."""


class Exchange:
    """`gone` is the one flag that ends everything: the client left, or the wire itself has answered or given up."""

    __slots__ = (
        "_body",
        "_carrier",
        "_delivered",
        "_expects_continue",
        "_framing",
        "_headers",
        "_http10",
        "_ingress",
        "_reader",
        "_service",
        "_status",
        "_task",
        "answered",
        "complete",
        "gone",
        "keep_alive",
        "scope",
        "unread",
    )

    def __init__(
        self,
        service: Service,
        carrier: Carrier,
        ingress: Ingress,
        scope: Scope,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        """The request allows another one behind it."""
        self.complete = False
        """The request has arrived to its end."""
        self.answered = False
        self.gone = False
        self.unread = 0
        """Body bytes that the application has not taken yet."""
        self._service = service
        self._carrier = carrier
        self._ingress = ingress
        self._http10 = scope["http_version"] == "1.0"
        self._expects_continue = expects_continue
        self._body: list[bytes] = []
        self._delivered = False
        self._reader: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._status = 0
        self._headers: Iterable[tuple[bytes, bytes]] = ()
        self._framing: Framing | None = None

    # ---- the connection's side

    def start(self) -> None:
        self._task = self._ingress.task = self._service.loop.create_task(self._run())
        self._service.tasks.add(self._task)

    def body_arrived(self, data: bytes) -> None:
        self._body.append(data)
        self.unread += len(data)
        self._expects_continue = False
        if self._reader is not None:
            self._wake()

    def ended(self) -> None:
        self.complete = True
        if self._reader is not None:
            self._wake()

    def lose(self) -> None:
        """Nobody reads the answer any more: `receive` says so, `send` raises, and in the end the task is cancelled."""
        if self.gone or self.answered:
            return
        self.gone = True
        self._body.clear()
        self._wake()
        self._ingress.leave()
        if self._task is not None and not self._task.done():
            self._service.loop.call_later(self._service.limits.cancel_grace_s, self._task.cancel)

    def refuse(self, error: ApiError) -> None:
        """The request turned out to be wrong, or ended, while the application ran: answer in its place."""
        framing = self._framing
        self.lose()
        if framing is None:
            head_request = self.scope["method"] == "HEAD"
            identity = self._ingress.request_id
            self._carrier.write(
                encode_error(self._service, error, head_request=head_request, close=True, request_id=identity)
            )
            self._carrier.answered(close=True)
        else:
            self._carrier.cut(reset=framing.until_close)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # ---- the application's side

    async def _run(self) -> None:
        failure: Exception | None = None
        try:
            await self._service.app(self.scope, self.receive, self.send)
        except Exception as error:
            failure = error
        finally:
            assert self._task is not None
            self._service.tasks.discard(self._task)
        if failure is not None and not (self.gone and isinstance(failure, OSError)):
            _log.error("the application failed on %r", self.scope["path"], exc_info=failure)
        elif failure is None and not self.answered and not self.gone:
            _log.error("the application returned without a whole response on %r", self.scope["path"])
        if not self.answered and not self.gone:
            self.refuse(ApiError(500, "The server failed on this request; it is safe to try again.", "internal_error"))

    async def receive(self) -> Message:
        """The next of `http.request` (all that has arrived) and `http.disconnect`. One caller at a time."""
        if self._expects_continue and not self.complete and not self.gone and self._framing is None:
            self._expects_continue = False
            self._carrier.write(CONTINUE)
        while not (self._body or self.gone or self.answered or (self.complete and not self._delivered)):
            self._reader = self._service.loop.create_future()
            await self._reader
        if self.gone or self.answered:
            return {"type": "http.disconnect"}
        body = b"".join(self._body)
        self._body.clear()
        self.unread = 0
        self._delivered = self.complete
        if not self.complete:
            self._carrier.body_taken()
        return {"type": "http.request", "body": body, "more_body": not self.complete}

    async def send(self, message: Message) -> None:
        """Raises ClientGone (an OSError) once nobody reads; waits while the client does not take what it is sent.

        The start is held until the first body message, and written together with it.
        """
        if self.gone:
            raise ClientGone("the client has left; stop producing this response")
        kind = message["type"]
        if kind == "http.response.body" and self._status and not self.answered:
            more: bool = message.get("more_body", False)
            self._write(message.get("body", b""), more)
            if more and self._carrier.write_paused:
                await self._carrier.writable()
                if self.gone:
                    raise ClientGone("the client left while the response waited for it to read")
        elif kind == "http.response.start" and not self._status:
            self._status = message["status"]
            self._headers = message.get("headers", ())
        else:
            raise RuntimeError(f"ASGI message {kind!r} is out of order in this response")

    def _write(self, body: bytes, more: bool) -> None:
        framing = self._framing
        if framing is None:
            head, framing = encode_head(
                self._service,
                self._status,
                self._headers,
                whole=None if more else len(body),
                head_request=self.scope["method"] == "HEAD",
                http10=self._http10,
                close=not (self.keep_alive and self.complete) or self._carrier.is_last_request(),
            )
            data = head + framing.encode(body, more)
            self._framing = framing
        else:
            data = framing.encode(body, more)
        if data:
            self._carrier.write(data)
        if not more:
            self.answered = True
            if self._reader is not None:
                self._wake()
            self._carrier.answered(close=framing.close)
