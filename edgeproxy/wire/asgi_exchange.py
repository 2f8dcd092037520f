"""One request and its answer as ASGI sees them: `receive` and `send` of one application call, whatever carries them."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.service import ClientGone, Message, Service

_log = logging.getLogger(__name__)


class AsgiExchange(ABC):
    """The half of an exchange that HTTP's versions share. What a version does in its own way has an underscore and
    stands below `send`.

    `gone` is the one flag that ends everything: the client left, or the wire itself has answered or given up.
    """

    __slots__ = (
        "_announced",
        "_body",
        "_delivered",
        "_expects_continue",
        "_grace",
        "_ingress",
        "_reader",
        "_service",
        "_started",
        "_task",
        "answered",
        "complete",
        "gone",
        "scope",
    )

    def __init__(self, service: Service, ingress: Ingress, scope: Scope, expects_continue: bool) -> None:
        self.scope = scope
        self.complete = False
        """The request has arrived to its end."""
        self.answered = False
        """The whole response is written."""
        self.gone = False
        self._service = service
        self._ingress = ingress
        self._task: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._body: list[bytes] = []
        """What has arrived and the application has not taken."""
        self._delivered = False
        self._expects_continue = expects_continue
        self._reader: asyncio.Future[None] | None = None
        """There while the application waits for more of the request."""
        self._announced = False
        """The application has given status and fields..."""
        self._started = False
        """...and they are written."""

    # ---- the connection's side

    def start(self) -> None:
        self._task = self._ingress.task = self._service.loop.create_task(self._run())
        self._service.tasks[self._task] = self._ingress

    def completed(self, moment: float) -> None:
        """The last byte of the request was read then."""
        self._ingress.last_byte = moment

    def lose(self) -> None:
        """Nobody reads the answer any more: `receive` says so, `send` raises, and in the end the task is cancelled."""
        if self.gone or self.answered:
            return
        self.gone = True
        self._body.clear()
        self._wake_reader()
        self._lost()
        self._ingress.leave()
        if self._task is not None and not self._task.done():
            self._grace = self._service.loop.call_later(self._service.limits.cancel_grace_s, self._task.cancel)

    def cut(self, error: ApiError | None) -> None:
        """The connection is over. `error`: why, where it was not the client who left."""
        if error is not None and not (self.gone or self.answered):
            self._ingress.refused = error
        self.lose()

    @abstractmethod
    def refuse(self, error: ApiError) -> None:
        """Answer in the application's place; where it has begun to answer, cut."""

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # ---- the application's side

    async def _run(self) -> None:
        service = self._service
        try:
            try:
                if not self.gone:  # else: taken back in the same read that brought it
                    await service.app(self.scope, self.receive, self.send)
            except Exception as error:
                self._judge(error)
            else:
                if not (self.answered or self.gone):
                    self._judge(None)
        finally:
            assert self._task is not None
            service.tasks.pop(self._task, None)
            self._task = None
            if self._grace is not None:
                self._grace.cancel()
            self._returned()

    def _judge(self, failure: Exception | None) -> None:
        """Of an application that has failed, or has returned without a whole answer."""
        if failure is None:
            _log.error("the application returned without a whole response on %r", self.scope["path"])
        elif not (self.gone and isinstance(failure, OSError)):
            _log.error("the application failed on %r", self.scope["path"], exc_info=failure)
        if not self.answered and not self.gone:
            self.refuse(ApiError(500, "The server failed on this request; it is safe to try again.", "internal_error"))

    async def receive(self) -> Message:
        """The next of `http.request` (all that has arrived) and `http.disconnect`. One caller at a time."""
        if self._expects_continue:
            self._expects_continue = False
            if not (self._started or self._body or self.complete or self.gone):
                self._write_continue()
        while not (self._body or self.gone or self.answered or (self.complete and not self._delivered)):
            self._reader = self._service.loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        if self.gone or self.answered:
            return {"type": "http.disconnect"}
        body = b"".join(self._body)
        self._body.clear()
        self._delivered = self.complete
        self._taken(len(body))
        return {"type": "http.request", "body": body, "more_body": not self.complete}

    async def send(self, message: Message) -> None:
        """Raises ClientGone (an OSError) once nobody reads; waits while the client does not take what it is sent.

        The start is held until the first body message, and written together with it.
        """
        if self.gone:
            raise ClientGone("the client has left; stop producing this response")
        kind = message["type"]
        if kind == "http.response.body" and self._announced and not self.answered:
            waits = self._pass(message.get("body", b""), not message.get("more_body", False))
            if waits is not None:
                await waits
        elif kind == "http.response.start" and not self._announced:
            self._announce(message["status"], message.get("headers", ()))
            self._announced = True
        else:
            raise RuntimeError(f"ASGI message {kind!r} is out of order in this response")

    def _check_gone(self) -> None:
        if self.gone:
            raise ClientGone("the client left while the response waited for it to read")

    # ---- what each version of HTTP does in its own way

    @abstractmethod
    def _write_continue(self) -> None:
        """100 Continue (RFC 9110 section 10.1.1)."""

    @abstractmethod
    def _taken(self, size: int) -> None:
        """The application has taken so many bytes of the body: as many may follow."""

    @abstractmethod
    def _announce(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep them for the first piece of the body. Raises ValueError for a head that cannot be sent."""

    @abstractmethod
    def _pass(self, data: bytes, end: bool) -> Awaitable[None] | None:
        """Write a piece of the body; None where nothing is to be waited for, which is nearly always.

        Raises ValueError for a body that does not keep its content-length.
        """

    def _lost(self) -> None:  # noqa: B027  (HTTP/1.1 has nothing to do here)
        """The exchange has just been lost."""

    def _returned(self) -> None:  # noqa: B027
        """The application has returned, and the answer is what it is."""
