"""A client's leaving reaches the node, whatever the request was doing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edgeproxy.gateway.watch import ClientGone, Watch
from edgeproxy.wire.ingress import Ingress
from tests.gateway.drive import begin, chat, edge


@pytest.mark.parametrize(
    ("model", "stream"),
    [("slow", False), ("slow", True), ("headers-then-nothing", False), ("role-then-stall", True)],
)
async def test_leaving_before_the_first_token_cancels(tmp_path: Path, model: str, stream: bool) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat(model, stream=stream))
        await e.near.until(lambda: e.near.seen == {model: 1})
        exchange.leave()
        await exchange.done()
        await e.near.until(lambda: e.near.abandoned == [model])
        assert exchange.status == 0
        assert e.far.chats == [], "nobody waits for a retry"
        assert e.in_flight == 0
        record = e.lines.requests[0]
        assert (record["client_gone"], record["status"]) == (True, 499)


async def test_leaving_after_the_first_token_cancels(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("stall-after-3", stream=True))
        await exchange.until(lambda x: x.body.count(b"\n\n") == 4)
        exchange.leave()
        await exchange.done()
        await e.near.until(lambda: e.near.abandoned == ["stall-after-3"])
        assert e.in_flight == 0
        assert e.lines.requests[0]["client_gone"]


async def test_leaving_during_a_flood_cancels(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("endless", stream=True))
        await exchange.until(lambda x: len(x.body) > 100_000)
        exchange.leave()
        await exchange.done()
        await e.near.until(lambda: e.near.abandoned == ["endless"])


async def test_leaving_is_no_sign_of_a_sick_node(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        for count in range(1, 13):
            exchange = begin(e.app, chat("slow"))
            await e.near.until(lambda count=count: e.near.seen == {"slow": count})  # type: ignore[misc]
            exchange.leave()
            await exchange.done()
        assert e.fleet.nodes[0].breaker.admits(0)


async def test_leaving_while_the_body_is_read_reaches_no_node(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(_: object) -> None:
            raise AssertionError("there is nobody to send to")

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers}
        await e.app(scope, receive, send)
        assert e.near.requests == []
        assert e.lines.requests[0]["client_gone"]


async def test_cancellation_from_outside_stays_one() -> None:
    """The listener's drain cancels too; that must not look like a client's leaving."""
    entered = asyncio.Event()

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def work() -> None:
        with Watch(None, never, lambda: False):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_result_is_not_lost_to_a_watch_that_saw_nothing() -> None:
    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    with Watch(None, never, lambda: False):
        pass
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_leaving_raises_client_gone_and_leaves_no_cancellation_behind() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone), Watch(None, receive, lambda: False):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


def known() -> Ingress:
    found = Ingress("h1", 0.0, lambda: None)
    found.task = asyncio.current_task()
    return found


async def never() -> dict[str, Any]:
    raise AssertionError("our own listeners are not asked")


async def test_our_listeners_tell_without_a_task_that_waits() -> None:
    here = known()
    tasks = asyncio.all_tasks()
    with pytest.raises(ClientGone), Watch(here, never, lambda: False):
        assert asyncio.all_tasks() == tasks
        asyncio.get_running_loop().call_soon(here.leave)
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_client_that_left_before_the_watch_is_gone() -> None:
    here = known()
    here.leave()
    with pytest.raises(ClientGone), Watch(here, never, lambda: False):
        await asyncio.sleep(0)


async def test_leaving_after_the_watch_cancels_nothing() -> None:
    here = known()
    with Watch(here, never, lambda: False):
        pass
    here.leave()
    await asyncio.sleep(0)


async def test_cancellation_from_outside_wins_over_a_listeners_word() -> None:
    here: Ingress | None = None
    entered = asyncio.Event()

    async def work() -> None:
        nonlocal here
        here = known()
        with Watch(here, never, lambda: False):
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await entered.wait()
    assert here is not None
    task.cancel()
    here.leave()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_disconnect_that_only_tells_of_the_end_cancels_nothing() -> None:
    """Listeners let `receive` return when the answer is complete, even while its last bytes are still being taken."""
    taken = asyncio.Event()

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with Watch(None, receive, lambda: True):
        asyncio.get_running_loop().call_later(0.01, taken.set)
        await taken.wait()


async def test_client_that_is_slow_to_take_the_last_bytes_has_not_left(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        exchange = begin(e.app, chat("ok"))
        exchange.disconnect_at_end = True
        await exchange.until(lambda x: x.waits)
        for _ in range(10):  # turns of the loop in which a watch could act
            await asyncio.sleep(0)
        exchange.reading.set()
        assert (await exchange.done()).ended
        assert not e.lines.requests[0]["client_gone"]
