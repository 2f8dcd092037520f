"""An HTTP/3 session of the server without sockets: a client beside it, and a network that the test is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import QuicEvent

from edgeproxy.client.aioquic_internals import Quic
from edgeproxy.wire.h3 import Session
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.quic_connection import Connection
from edgeproxy.wire.service import App, Service
from edgeproxy.wire.tls import DevCertificate

CLIENT, SERVER = ("127.0.0.1", 1), ("127.0.0.1", 2)


class Still:
    """A loop whose timers do not run: the bench looks at them itself, by its own clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call_at(self, when: float, *call: Any) -> asyncio.TimerHandle:
        return self._loop.call_at(when + 1e9, *call)


class Home:
    """The endpoint, as far as a session asks for it; it lets every exception through."""

    address = SERVER
    limits = Limits(datagrams_per_turn=10**9)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = cast(asyncio.AbstractEventLoop, Still(loop))

    def wake(self, connection: Connection) -> None:
        """The test carries datagrams when it likes."""

    def guard(self, connection: Connection, step: Callable[..., None], *args: Any) -> None:
        step(*args)

    def handshaken(self, connection: Connection) -> None: ...

    def migrated(self) -> None: ...

    def route(self, cid: bytes, connection: Connection) -> None: ...

    def unroute(self, cid: bytes, connection: Connection) -> None: ...

    def ended(self, connection: Connection) -> None: ...

    def remove(self, connection: Connection) -> None:
        connection.dispose()


class Bench:
    """Made on its own event loop, which stands still between calls of `run`."""

    def __init__(self, app: App, certificate: DevCertificate, limits: Limits) -> None:
        self.loop = asyncio.new_event_loop()
        self.raised: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.raised.append(context))
        self.events: list[QuicEvent] = []
        self.now = time.monotonic()
        self.service: Service = self.loop.run_until_complete(self._service(app, limits))
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name="localhost")
        configuration.load_verify_locations(cafile=str(certificate.ca))
        self.client = QuicConnection(configuration=configuration)
        self.client.connect(SERVER, now=self.now)
        server = QuicConfiguration(is_client=False, alpn_protocols=["h3"])
        server.load_cert_chain(certificate.certificate, certificate.key)
        self.quic = Quic(
            server,
            streams=limits.streams_per_connection,
            original_destination_connection_id=self.client.original_destination_connection_id,
        )
        self.session = Session(self.service, self.quic, Home(self.loop), CLIENT[0], self.now)
        for _ in range(6):
            self.run()

    async def _service(self, app: App, limits: Limits) -> Service:
        return Service(app, limits, scheme="https", state={}, alt_svc=None)

    def run(self, passes: Callable[[], bool] = lambda: True) -> None:
        """One exchange of datagrams, of which those pass that `passes` says, and some turns of the loop."""
        self.now += 0.01
        timer = self.client.get_timer()
        if timer is not None and timer <= self.now:
            self.client.handle_timer(self.now)
        for data, _ in self.client.datagrams_to_send(self.now):
            if passes():
                self.session.receive(data, CLIENT, self.now)
        self.turn()
        timer = self.session.quic.get_timer()
        if timer is not None and timer <= self.now:
            self.session.quic.handle_timer(self.now)
        if self.session.quic.started:
            self.session.flush(self.now, self._send if passes() else lambda data, address: None)
        while (event := self.client.next_event()) is not None:
            self.events.append(event)

    def _send(self, data: bytes, address: Any) -> None:
        self.client.receive_datagram(data, SERVER, self.now)

    def turn(self) -> None:
        async def some() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())

    def close(self) -> None:
        """Ends the connection; nothing of it may be left."""
        self.session.dispose()
        self.turn()
        for task in list(self.service.tasks):
            task.cancel()
        self.turn()
        assert not self.service.tasks
        assert not self.session.requests
        assert not self.raised, self.raised
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
