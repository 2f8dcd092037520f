"""The dashboard at a thousand decisions a second: it keeps up, stays small, and answers to clicks meanwhile.

The decisions are put into the observe room as the gateway puts them; no HTTP load could make so many beside a browser.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import monotonic, time

import pytest

from edgeproxy.gateway.account import Account, Call
from edgeproxy.observe.history import KEPT, SLICE_S, History
from edgeproxy.routing.choose import Decision, Wanted, choose
from edgeproxy.upstream.node import Fleet
from tests.e2e.browser import PROGRAM, Browser, browser
from tests.e2e.panel import Panel, until

pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]
A_TICK, TICK_S = 50, 0.05


async def decide(account: Account, fleet: Fleet, stop: threading.Event) -> None:
    """Decisions without end, after an hour of first tokens."""
    _fill(account.outcomes.history, time())
    rng, number = Random(1), 0
    while not stop.is_set():
        for _ in range(A_TICK):
            number += 1
            now = monotonic()
            found = choose(fleet.nodes, Wanted(100.0), fleet.home, now, rng)
            assert isinstance(found, Decision) and found.first is not None
            took = rng.lognormvariate(-2.5, 0.7)
            call = Call(b"r-%d" % number, now - took, rng.choice(("h1", "h2", "h3")), 0.002)
            call.model = "ok"
            call.choice, call.status, call.attempts = found.noted(), 200, 1
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
            history.answered([rng.lognormvariate(-2.5, 0.7)], True, now - back * SLICE_S)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Browser]:
    with browser(tmp_path) as found:
        yield found


def counted(page: Browser) -> int:
    return int(page.ask("Number.parseInt(document.getElementById('counted')?.textContent) || 0"))


def test_a_thousand_decisions_a_second_are_kept_up_with_and_leave_the_page_small_and_at_hand(page: Browser) -> None:
    with Panel(decide) as busy:
        page.open(busy.url)
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
    with Panel(decide) as busy:
        page.open(busy.url)
        until(lambda: counted(page) > 0)
        slices, filled, took_ms = page.ask(DRAW)
        print(f"an hour drawn in {took_ms:.1f} ms")
        assert slices >= KEPT - 1
        assert filled > 0.8
        assert page.errors == []
