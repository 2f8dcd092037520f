"""The dashboard at a thousand decisions a second: it keeps up, stays small, and answers to clicks meanwhile.

The decisions are put into the observe room as the gateway puts them; no HTTP load could make so many beside a browser.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from random import Random
from time import monotonic, sleep, time

import pytest

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import HostCheck
from edgeproxy.admin import Admin, Known
from edgeproxy.app import node_views
from edgeproxy.config import Address, GatewayLimits
from edgeproxy.gateway.account import Account, Call
from edgeproxy.gateway.decisions import choice
from edgeproxy.observe.burn import Burn
from edgeproxy.observe.history import KEPT, SLICE_S, History
from edgeproxy.observe.live import Live
from edgeproxy.observe.log import Log
from edgeproxy.observe.metrics import Metrics
from edgeproxy.observe.outcomes import Outcomes
from edgeproxy.observe.reloads import ReloadStatus
from edgeproxy.routing.choose import Decision, Wanted, choose
from edgeproxy.upstream.node import Fleet
from edgeproxy.wire.limits import Limits
from edgeproxy.wire.tcp import TcpListener
from tests.e2e.browser import PROGRAM, Browser, browser
from tests.gateway.drive import config

pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]
A_TICK, TICK_S = 50, 0.05
PATIENCE_S = 60.0


class Busy:
    """An admin listener, and decisions without end, on a loop of their own."""

    def __init__(self) -> None:
        self.port: Future[int] = Future()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Busy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        settings = config("http://127.0.0.1:1", "http://127.0.0.1:2", GatewayLimits())
        fleet, burn, sink = Fleet.from_config(settings, token="t"), Burn(0.95), os.open(os.devnull, os.O_WRONLY)
        for node in fleet.nodes:
            node.up(0.0)
            node.rtt.probe(0.01, monotonic())
        views, reloads, started = node_views(fleet), ReloadStatus(time()), time() - KEPT * SLICE_S
        account = Account(Log(sink), Metrics("1", views, reloads, burn), Outcomes(burn))
        known = Known("1", settings, fleet, views, account, reloads, started)
        outcomes = account.outcomes
        _fill(outcomes.history, time())
        live = Live(
            known.view,
            lambda: known.requests(outcomes.newest()),
            lambda: known.requests(outcomes.changes()),
            int(started),
            time,
        )

        async def nothing(*_: object) -> None: ...

        admin = Admin(known, live, nothing, Keys(), HostCheck([Address("127.0.0.1", 0)], ()))
        listener = TcpListener(admin, Limits(), ssl=None, alt_svc=lambda: None, state={})
        await listener.start(Address("127.0.0.1", 0))
        running = asyncio.create_task(live.run())
        self.port.set_result(listener.port)
        try:
            await self._decide(account, fleet)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await listener.drain(0.1)
            os.close(sink)

    async def _decide(self, account: Account, fleet: Fleet) -> None:
        rng, number = Random(1), 0
        while not self._stop.is_set():
            for _ in range(A_TICK):
                number += 1
                now = monotonic()
                found = choose(fleet.nodes, Wanted(100.0), fleet.home, now, rng)
                assert isinstance(found, Decision) and found.first is not None
                took = rng.lognormvariate(-2.5, 0.7)
                call = Call(b"r-%d" % number, now - took, rng.choice(("h1", "h2", "h3")), 0.002, model="ok")
                call.choice, call.status, call.attempts = choice(found), 200, 1
                call.node, call.region, call.rtt_s = found.first.name, found.first.region, 0.01
                call.sent_at, call.first_at = now - took + 0.0005, now
                call.terms = {"queue": took / 4, "prefill": took / 2}
                account.close(call, now)
            await asyncio.sleep(TICK_S)


def _fill(history: History, now: float) -> None:
    """The hour before, every slice of it with first tokens in fifty bins."""
    rng = Random(2)
    for back in range(KEPT, 0, -1):
        for _ in range(50):
            history.answered(rng.lognormvariate(-2.5, 0.7), True, now - back * SLICE_S)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as found:
        yield found


def until(condition: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline, "it never came to be"
        sleep(0.05)


def counted(page: Browser) -> int:
    return int(page.ask("Number.parseInt(document.getElementById('counted')?.textContent) || 0"))


def test_a_thousand_decisions_a_second_are_kept_up_with_and_leave_the_page_small_and_at_hand(page: Browser) -> None:
    with Busy() as busy:
        page.open(f"http://127.0.0.1:{busy.port.result()}/dashboard")
        until(lambda: counted(page) > 1000)
        elements = int(page.ask("document.getElementsByTagName('*').length"))
        seen = counted(page)
        until(lambda: counted(page) > seen + 1500)
        assert page.ask("document.getElementById('live').textContent") == "live"
        assert page.ask("document.getElementById('recent').rows.length") <= 40
        assert int(page.ask("document.getElementsByTagName('*').length")) < elements + 400, "it does not grow"

        page.ask("document.querySelector('#recent button').click()")
        until(lambda: "runner-up" in str(page.ask("document.getElementById('details-body').textContent")))
        page.ask("document.getElementById('close').click()")
        name = page.ask("document.getElementById('theme').textContent")
        assert (
            page.ask("document.getElementById('theme').click(), document.getElementById('theme').textContent") != name
        )
        seen = counted(page)
        until(lambda: counted(page) > seen + 500)
        assert page.ask("document.getElementById('chart').querySelector('canvas').width") > 0
        shown = page.ask("Number.parseInt(document.querySelector('#slices tr').cells[1].textContent)")
        assert shown > 0
        assert page.errors == []


DRAW = """(async () => {
  const { drawChart } = await import("/assets/chart.js");
  const events = new EventSource("/admin/events");
  const told = JSON.parse((await new Promise((resolve) => events.addEventListener("snapshot", resolve))).data);
  events.close();
  const state = { ...told, slices: new Map(told.slices.map((slice) => [slice.start, slice])) };
  const begun = performance.now();
  drawChart(state);
  await new Promise(requestAnimationFrame);
  const ctx = document.querySelector("#chart canvas").getContext("2d");
  const { width, height } = ctx.canvas;
  const took = performance.now() - begun;
  const pixels = ctx.getImageData(0, 0, width, height).data;
  const columns = new Set();
  for (let at = 3; at < pixels.length; at += 4) if (pixels[at]) columns.add(((at - 3) / 4) % width);
  return [told.slices.length, columns.size / width, took];
})()"""


def test_an_hour_of_first_tokens_is_drawn_from_end_to_end(page: Browser) -> None:
    with Busy() as busy:
        page.open(f"http://127.0.0.1:{busy.port.result()}/dashboard")
        until(lambda: counted(page) > 0)
        slices, filled, took_ms = page.ask(DRAW)
        print(f"an hour drawn in {took_ms:.1f} ms")
        assert slices >= KEPT - 1
        assert filled > 0.8
        assert page.errors == []
