"""Pages get a snapshot, then changes; one that was away gets what it missed, or a snapshot; no queue grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import orjson
import pytest

from edgeproxy.observe.history import KEPT, SLICE_S
from edgeproxy.observe.live import KEPT_TICKS, Live

NOW = 10_000.0


class Page:
    def __init__(self, live: Live, last_event_id: str | None = None) -> None:
        self._events: AsyncIterator[bytes] = live.events(last_event_id)

    async def next(self) -> tuple[str, str, dict[str, object]]:
        """(event, id, data) of the next event; what is no event is passed over."""
        while True:
            raw = await anext(self._events)
            fields = dict(line.split(": ", 1) for line in raw.decode().strip().split("\n") if ": " in line)
            if "event" in fields:
                return fields["event"], fields["id"], orjson.loads(fields["data"])


def live() -> Live:
    count = iter(range(10**6))
    return Live(
        lambda since, now: {"since": since, "now": now},
        lambda: {"recent": ["all"]},
        lambda: {"recent": [next(count)]},
        epoch=7,
        clock=lambda: NOW,
    )


async def test_a_snapshot_comes_first_then_changes_in_order() -> None:
    feed = live()
    page = Page(feed)
    whole = {"since": NOW - KEPT * SLICE_S, "now": NOW, "recent": ["all"]}
    assert await page.next() == ("snapshot", "7-0", whole)
    for number in range(3):
        await feed.tick()
        assert await page.next() == ("delta", f"7-{number + 1}", {"since": NOW - 20, "now": NOW, "recent": [number]})


async def test_a_page_that_comes_back_goes_on_where_it_was() -> None:
    feed = live()
    first, second = Page(feed), Page(feed)
    await first.next()
    await second.next()
    for _ in range(4):
        await feed.tick()
    back = Page(feed, "7-2")
    assert [(await back.next())[1] for _ in range(2)] == ["7-3", "7-4"]


@pytest.mark.parametrize("last", ["6-0", "7-99", "7-x", "7--1", "", "7-" + "9" * 40])
async def test_an_id_of_another_process_or_of_none_gets_a_snapshot(last: str) -> None:
    assert (await Page(live(), last).next())[:2] == ("snapshot", "7-0")


async def test_a_page_that_does_not_read_gets_a_snapshot_and_nothing_grows() -> None:
    feed = live()
    page = Page(feed)
    await page.next()
    for _ in range(3 * KEPT_TICKS):
        await feed.tick()
    assert len(feed._ticks) == KEPT_TICKS
    assert (await page.next())[:2] == ("snapshot", f"7-{3 * KEPT_TICKS}")


async def test_while_nobody_looks_nothing_is_kept_and_who_comes_back_gets_a_snapshot() -> None:
    feed = live()
    async with aclosing(feed.events(None)) as events:
        async for raw in events:
            if raw.startswith(b"event"):
                break
        await feed.tick()
    assert feed.clients == 0
    await feed.tick()
    assert not feed._ticks
    assert (await Page(feed, "7-1").next())[0] == "snapshot"


async def test_pages_end_when_the_proxy_does() -> None:
    feed, never = live(), asyncio.Event()

    async def wait(seconds: float) -> None:
        await never.wait()

    running = asyncio.create_task(feed.run(wait))
    page = Page(feed)
    await page.next()
    waiting = asyncio.create_task(page.next())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(StopAsyncIteration):
        await waiting
