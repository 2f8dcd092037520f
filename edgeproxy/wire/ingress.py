"""What a listener knows of a request and passes to the application beside the ASGI scope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from typing import Any, Literal

from edgeproxy.protocol.openai.errors import ApiError

Scope = MutableMapping[str, Any]
SCOPE_KEY = "edgeproxy"
"""`scope["extensions"][SCOPE_KEY]` holds the request's Ingress."""


class HeadNote:
    """What the application has found in a request's head, and in nothing else: it finds it again with the next request
    of that connection, if its head is the same but for the content-length."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: Any = None


class Ingress:
    """One request's. The listener fills it; the application may set `on_gone`, `on_stop` and `request_id`."""

    __slots__ = (
        "first_byte",
        "gone",
        "last_byte",
        "note",
        "on_gone",
        "on_stop",
        "protocol",
        "refused",
        "request_id",
        "rtt",
        "task",
    )

    def __init__(
        self,
        protocol: Literal["h1", "h2", "h3"],
        first_byte: float,
        rtt: Callable[[], float | None],
        note: HeadNote | None = None,
    ) -> None:
        self.protocol = protocol
        self.first_byte = first_byte
        """`time.monotonic()` at which the request's first byte was read, before any parsing. (`loop.time()` is the same
        clock, but uvloop reads it once a turn and in whole milliseconds: too coarse for a latency budget.)"""
        self.last_byte = first_byte
        """The same of the byte that completed the request, once it has come. What lies between is the client's."""
        self.rtt = rtt
        """The client's round trip in seconds as the kernel or QUIC measures it; None where nothing is known."""
        self.note = note
        """None where the listener does not compare heads."""
        self.gone = False
        """Nobody waits for the rest of the answer: what `http.disconnect` says, without a task that waits for it."""
        self.on_gone: Callable[[], None] | None = None
        """Called at the moment in which `gone` becomes true; no more once the answer is complete."""
        self.on_stop: Callable[[], None] | None = None
        """Called when a drain has waited long enough: the answer is to end now, while somebody can still be told."""
        self.refused: ApiError | None = None
        """What the listener itself has answered, or would have, had the answer not begun."""
        self.request_id: bytes | None = None
        """By which the application knows the request: errors that the listener answers in its place carry it too."""
        self.task: asyncio.Task[None] | None = None
        """In which the application was called."""

    def leave(self) -> None:
        """The listener's: the client has left, or the listener itself has answered or given up."""
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


def ingress(scope: Scope) -> Ingress | None:
    """None under a foreign ASGI server (tests, other deployments)."""
    found = (scope.get("extensions") or {}).get(SCOPE_KEY)
    return found if isinstance(found, Ingress) else None
