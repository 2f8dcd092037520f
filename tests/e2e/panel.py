"""An admin listener with its dashboard, over what a test puts into the observe room: no node, no model, no load."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from time import monotonic, sleep, time
from typing import Any

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import HostCheck
from edgeproxy.admin import Admin, Known
from edgeproxy.app import node_views
from edgeproxy.config import Address, GatewayLimits
from edgeproxy.gateway.account import Account
from edgeproxy.observe.burn import Burn
from edgeproxy.observe.history import KEPT, SLICE_S
from edgeproxy.observe.live import Live
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.outcomes import Outcomes
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.upstream.node import Fleet
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tcp import TcpListener
from tests.gateway.drive import config

PATIENCE_S = 60.0
Arrange = Callable[[Account, Fleet, threading.Event], Awaitable[None]]
"""Puts in what is to be shown; on the listener's loop, until it is done or the event is set."""


class Panel:
    """The listener, on a loop and a thread of its own. It has run for an hour; both its nodes are ready."""

    def __init__(
        self,
        arrange: Arrange,
        locations: dict[str, tuple[float, float]] | None = None,
        models: tuple[str, ...] | None = None,
    ) -> None:
        """`models`: that every node serves; None: those of the fake nodes."""
        self.port: Future[int] = Future()
        self._arrange = arrange
        self._locations = locations or {}
        self._models = models
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Panel:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port.result()}/dashboard"

    async def _run(self) -> None:
        settings = config("http://127.0.0.1:1", "http://127.0.0.1:2", GatewayLimits())
        regions = [replace(region, location=self._locations.get(region.name)) for region in settings.regions]
        if self._models is not None:
            served = self._models
            regions = [
                replace(region, nodes=tuple(replace(node, models=served) for node in region.nodes))
                for region in regions
            ]
        settings = replace(settings, regions=tuple(regions))
        fleet, burn, sink = Fleet.from_config(settings, token="t"), Burn(0.95), os.open(os.devnull, os.O_WRONLY)
        for node in fleet.nodes:
            node.up(0.0)
            node.rtt.probe(0.01, monotonic())
        views, reloads, started = node_views(fleet), ReloadStatus(time()), time() - KEPT * SLICE_S
        account = Account(Log(sink), Metrics("1", views, reloads, burn), Outcomes(burn))
        known = Known("1", settings, fleet, views, account, reloads, started)
        live = Live(
            known.view,
            lambda: known.requests(account.outcomes.newest()),
            lambda: known.requests(account.outcomes.changes()),
            int(started),
            time,
        )

        async def nothing(*_: Any) -> None: ...

        admin = Admin(known, live, nothing, Keys(), HostCheck([Address("127.0.0.1", 0)], ()))
        listener = TcpListener(admin, Limits(), ssl=None, alt_svc=lambda: None, state={})
        await listener.start(Address("127.0.0.1", 0))
        running = asyncio.create_task(live.run())
        try:
            arranging = asyncio.ensure_future(self._arrange(account, fleet, self._stop))
            await asyncio.sleep(0)
            self.port.set_result(listener.port)
            await arranging
            await asyncio.to_thread(self._stop.wait)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await listener.drain(0.1)
            os.close(sink)


def until(condition: Callable[[], object]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline, "it never came to be"
        sleep(0.05)
