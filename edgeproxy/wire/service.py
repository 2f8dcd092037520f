"""What all connections of one TCP listener share, and the ASGI types they speak."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from edgeproxy.wire.ingress import Ingress, Scope
from edgeproxy.wire.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ClientGone(ConnectionError):
    """Raised by `send()` once nobody reads the answer (ASGI HTTP spec 2.4: an OSError)."""


class Connection(Protocol):
    """A live connection as its listener sees it, whatever it speaks."""

    def sweep(self, now: float) -> None:
        """Called about once a second with `time.monotonic()`: close what has passed its deadline."""

    def drain(self) -> None:
        """Take no further request; close now if idle, else after the answers in progress."""

    def abort(self) -> None:
        """Close at once, whatever is in progress."""


def imf_fixdate(now: int) -> bytes:
    """Unix seconds as a `date` field has them (RFC 9110 section 5.6.7). By hand: `email.utils` takes 4 ms to load,
    and strftime has the names of days that the locale has."""
    at = time.gmtime(now)
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year:04} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT".encode()


class Service:
    """To be made on the running event loop."""

    def __init__(
        self,
        app: App,
        limits: Limits,
        *,
        scheme: str,
        state: dict[str, Any],
        alt_svc: Callable[[], bytes | None] | None,
    ) -> None:
        self.app = app
        self.limits = limits
        self.scheme = scheme
        self.state = state
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        """Each adds itself when it is made and removes itself when it is lost."""
        self.tasks: dict[asyncio.Task[None], Ingress] = {}
        """Running application calls; the loop itself holds tasks only weakly."""
        self.draining = False
        self._alt_svc = alt_svc
        self._date = b""
        self._date_at = 0

    def stop(self) -> None:
        """Asks applications to end their answers now."""
        for ingress in tuple(self.tasks.values()):
            if ingress.on_stop is not None:
                ingress.on_stop()

    @property
    def stoppable(self) -> bool:
        """Some application would hear of `stop`."""
        return any(ingress.on_stop is not None for ingress in self.tasks.values())

    def date(self) -> bytes:
        """An IMF-fixdate (RFC 9110 section 5.6.7), formatted once a second."""
        now = int(time.time())
        if now != self._date_at:
            self._date_at = now
            self._date = imf_fixdate(now)
        return self._date

    def alt_svc(self) -> bytes | None:
        """The `alt-svc` value of the moment (RFC 7838), if there is one."""
        return self._alt_svc() if self._alt_svc is not None else None
