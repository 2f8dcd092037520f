"""The TCP listener: accepting within limits, TLS, one sweep for all deadlines, drain."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
import ssl as tls
import time
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from edgeproxy.config import Address
from edgeproxy.wire.dispatch import Dispatch
from edgeproxy.wire.handshakes import Handshakes
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.plain_request import answer_plainly, is_plain_request
from edgeproxy.wire.quota import Quota
from edgeproxy.wire.service import App, Service

_log = logging.getLogger(__name__)

_BACKLOG = 1024
_ACCEPT_BATCH = 64
_ACCEPT_BACK_OFF_S = 1.0
_SWEEP_S = 1.0
_TELL_S = 60.0
"""Between two lines of the log that say the same."""
_KEEP_ALIVE_PROBE_S = 30
_UNWIND_S = 1.0
"""How long applications may take to notice that their clients were cut off, before they are cancelled."""
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class TcpListener:
    """HTTP/1.1 over TCP, with TLS where `ssl` is given; `alt_svc` is then asked for each response's header.

    An accept loop of its own, since `loop.create_server` gives no sign of a failed handshake, counts nothing and
    accepts without limit.
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        *,
        ssl: tls.SSLContext | None,
        alt_svc: Callable[[], bytes | None],
        state: dict[str, Any],
        counts: Counter[str] | None = None,
    ) -> None:
        self.counts = Counter[str]() if counts is None else counts
        """`accepted`, `refused` (too many of one address, or in all), `gave_way` (a handshake, for a newcomer),
        `handshake_failed`, `accept_failed`; several listeners may share them."""
        self._turned_away = 0
        """Refused or given way since the last word of it."""
        self._told_at = -inf
        self._limits = limits
        self._ssl = ssl
        self._quota = Quota(limits)
        self._service = Service(
            app, limits, scheme="https" if ssl else "http", state=state, alt_svc=alt_svc if ssl else None
        )
        self._loop = self._service.loop
        self._socket: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._handshakes = Handshakes(limits.half_open)
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def start(self, where: socket.socket | Address) -> None:
        """Listen on an address, or on a bound socket, which is then owned here. Raises OSError."""
        sock = where if isinstance(where, socket.socket) else await self._bind(where)
        sock.setblocking(False)
        _set_options(sock, self._limits)
        sock.listen(_BACKLOG)
        self._socket = sock
        self._loop.add_reader(sock, self._accept)
        self._timer = self._loop.call_later(_SWEEP_S, self._tick)

    @property
    def port(self) -> int:
        assert self._socket is not None, "the listener is not started"
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Open connections, those in their handshake included."""
        return self._quota.total

    def use(self, context: tls.SSLContext) -> None:
        """For the handshakes from now on; connections that exist go on. Only for a listener that has TLS already."""
        assert self._ssl is not None, "a plain listener stays one"
        self._ssl = context

    def sweep(self, now: float) -> None:
        """Close what has passed its deadline at `now` (`time.monotonic()`); runs by itself once a second."""
        for connection in tuple(self._service.connections):
            connection.sweep(now)

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, close idle connections, let answers end (they say `connection: close`); cut off what is
        left after `timeout_s`. No connection and no application task remains."""
        deadline = self._loop.time() + timeout_s
        self._stop_accepting()
        self._service.draining = True
        self._loop.call_later(self._limits.late_request_s, self._give_up_handshakes)
        for connection in tuple(self._service.connections):
            connection.drain()
        if self._quota.total:
            self._emptied = self._loop.create_future()
            await asyncio.wait([self._emptied], timeout=timeout_s)
            if self._service.stoppable:
                self._service.stop()
                await asyncio.wait([self._emptied], timeout=_UNWIND_S)
        tasks = self._service.tasks
        if tasks:
            await asyncio.wait(tuple(tasks), timeout=max(0.0, deadline - self._loop.time()))
        self._abort_connections()
        if tasks:
            await asyncio.wait(tuple(tasks), timeout=_UNWIND_S)
        self.close()
        if tasks:
            await asyncio.wait(tuple(tasks))

    def close(self) -> None:
        """Drop everything now."""
        self._stop_accepting()
        self._abort_connections()
        if self._timer is not None:
            self._timer.cancel()
        for task in (*self._opening, *self._service.tasks):
            task.cancel()

    def _give_up_handshakes(self) -> None:
        for task in self._opening:
            task.cancel()

    # ---- accepting

    async def _bind(self, address: Address) -> socket.socket:
        family, kind, protocol, _, name = (
            await self._loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(name)
        except OSError:
            sock.close()
            raise
        return sock

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(_ACCEPT_BATCH):
            try:
                sock, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self.counts["accept_failed"] += 1
                if error.errno in _EXHAUSTED:
                    self._back_off(error)
                    return
                continue  # this client left already (ECONNABORTED and its like, accept(2))
            self._admit(sock, peer[0])

    def _back_off(self, error: OSError) -> None:
        """The socket stays readable, so without a pause this would spin; connections wait in the kernel meanwhile."""
        assert self._socket is not None
        _log.warning("cannot accept connections: %s; raise the open-file limit (ulimit -n)", error.strerror)
        self._loop.remove_reader(self._socket)
        self._loop.call_later(_ACCEPT_BACK_OFF_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _admit(self, sock: socket.socket, host: str) -> None:
        release = self._quota.admit(host)
        if release is None:
            self._turn_away("refused")
            sock.close()
            return
        self.counts["accepted"] += 1
        sock.setblocking(False)
        task = self._loop.create_task(self._open(sock, functools.partial(self._lost, release)))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        if self._ssl is not None:
            if not self._handshakes.begin(host, task.cancel):
                self._turn_away("gave_way")
            task.add_done_callback(lambda _: self._handshakes.end(host, task.cancel))

    def _turn_away(self, why: str) -> None:
        self.counts[why] += 1
        self._turned_away += 1

    async def _open(self, sock: socket.socket, lost: Callable[[], None]) -> None:
        try:
            if self._ssl is None:
                await self._loop.connect_accepted_socket(lambda: Dispatch(self._service, lost), sock)
            else:
                await self._handshake(sock, self._ssl, lost)
        except OSError:  # ssl.SSLError and time-outs are OSErrors too
            self.counts["handshake_failed"] += 1
            lost()
        except BaseException:
            lost()
            raise

    async def _handshake(self, sock: socket.socket, context: tls.SSLContext, lost: Callable[[], None]) -> None:
        """Raises OSError. One that fails closes the socket, but not its twin."""
        try:
            twin = sock.dup()
        except OSError:  # no file is left
            sock.close()
            raise
        with twin:
            try:
                await self._loop.connect_accepted_socket(
                    lambda: Dispatch(self._service, lost),
                    sock,
                    ssl=context,
                    ssl_handshake_timeout=self._limits.handshake_s,
                    ssl_shutdown_timeout=self._limits.close_s,
                )
            except OSError as failure:
                if is_plain_request(failure):
                    await answer_plainly(twin, self._service)
                raise

    def _lost(self, release: Callable[[], None]) -> None:
        release()
        if self._emptied is not None and not self._quota.total and not self._emptied.done():
            self._emptied.set_result(None)

    # ---- the rest of its life

    def _tick(self) -> None:
        self._timer = self._loop.call_later(_SWEEP_S, self._tick)
        now = time.monotonic()
        self.sweep(now)
        self._tell(now)

    def _tell(self, now: float) -> None:
        if self._turned_away and now - self._told_at >= _TELL_S:
            _log.warning(
                "port %d turned %d connections away of late: more than %d of one address, %d in all, or %d in their "
                "handshake; see edgeproxy_connections_total",
                self.port if self._socket is not None else 0,
                self._turned_away,
                self._limits.connections_per_address,
                self._limits.connections,
                self._limits.half_open,
            )
            self._turned_away, self._told_at = 0, now

    def _stop_accepting(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _abort_connections(self) -> None:
        for connection in tuple(self._service.connections):
            connection.abort()


def _set_options(sock: socket.socket, limits: Limits) -> None:
    """Accepted sockets inherit these: a peer that vanished is noticed, and little is queued out of our sight."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _KEEP_ALIVE_PROBE_S),
        ("TCP_KEEPINTVL", _KEEP_ALIVE_PROBE_S // 3),
        ("TCP_USER_TIMEOUT", int(limits.stalled_write_s * 1000)),
        ("TCP_NOTSENT_LOWAT", limits.unsent_bytes),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
