"""What a wide network does to requests: no client hangs beyond its deadline, and a region that is lost is not seen."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from edgeproxy.config import GatewayLimits
from tests import fake_behaviours, fake_exchange
from tests.fake_exchange import ANSWER, STREAM
from tests.fake_native import Native, text_of
from tests.gateway.drive import ask, begin, chat
from tests.wan.distant import PROBES, Wan, wan

QUICK = GatewayLimits(first_byte_s=0.5, stall_s=0.5, resume_after_s=0.3)
SLOW = GatewayLimits(first_byte_s=60.0)


async def test_delay_and_jitter_change_no_byte(tmp_path: Path) -> None:
    async with wan(tmp_path, (10, 30), SLOW) as w:
        rng = Random(7)
        for number in range(12):
            w.near.relay.one_way_s = rng.uniform(0.002, 0.008)
            stream = bool(number % 2)
            reply = await ask(w.app, chat("trickle-bytes" if stream else "ok", stream=stream))
            assert (reply.status, reply.body) == (200, STREAM if stream else ANSWER)
        assert len(w.near.fake.chats) + len(w.far.fake.chats) == 12, "each was asked once"


async def test_a_region_that_swallows_everything_is_not_seen(tmp_path: Path) -> None:
    """Requests that wait there are told as soon as probes are lost, long before their own time is over."""
    async with wan(tmp_path, (5, 20), SLOW) as w:
        waiting = [
            begin(w.app, chat("slow", stream=bool(n % 2)), headers={"x-edge-region": "near, far"}) for n in range(6)
        ]
        await w.near.fake.until(lambda: len(w.near.fake.chats) == 6)
        w.far.fake.gate.set()
        w.near.swallow()
        for exchange in waiting:
            assert (await exchange.done()).status == 200
        assert len(w.far.fake.chats) == 6
        await w.until(w.near.node, ready=False)
        assert (await ask(w.app, chat("ok"))).body == ANSWER
        assert len(w.near.fake.chats) == 6, "nothing more is sent there"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_waits_in_a_region_that_falls_silent_does_not_wait_for_lost_probes(
    stream: bool, tmp_path: Path
) -> None:
    async with wan(tmp_path, (5, 20), SLOW, replace(PROBES, lost=10**9)) as w:
        waiting = begin(w.app, chat("slow", stream=stream))
        await w.near.fake.until(lambda: len(w.near.fake.chats) == 1)
        w.far.fake.gate.set()
        w.near.swallow()
        assert (await waiting.done()).status == 200
        assert len(w.far.fake.chats) == 1


async def test_a_half_open_connection_of_the_pool_fails_over(tmp_path: Path) -> None:
    async with wan(tmp_path, (5, 20), QUICK) as w:
        await ask(w.app, chat("ok"))
        assert w.near.node.pool.idle, "a warm connection, whose other end is about to vanish"
        w.near.swallow()
        reply = await ask(w.app, chat("ok", stream=True))
        assert (reply.status, reply.body) == (200, STREAM)
        assert reply.header(b"x-edge-region") == b"far"


async def test_when_all_regions_are_lost_the_client_is_told_in_time(tmp_path: Path) -> None:
    async with wan(tmp_path, (5, 20), QUICK) as w:
        w.near.swallow()
        w.far.swallow()
        async with asyncio.timeout(8):  # three attempts, half a second each, at a grain of one second
            reply = await ask(w.app, chat("ok"))
        assert reply.status in (502, 503, 504)
        assert reply.error["code"] in ("upstream_failed", "no_node")


async def test_the_breaker_of_a_lost_region_opens_and_it_comes_back_by_itself(tmp_path: Path) -> None:
    async with wan(tmp_path, (5, 20), QUICK) as w:
        w.near.swallow()
        replies = await asyncio.gather(*(ask(w.app, chat("ok")) for _ in range(6)))
        assert {reply.body for reply in replies} == {ANSWER}
        await w.until(w.near.node, ready=False)
        w.near.relay.resume()
        await w.until(w.near.node, ready=True)
        async with asyncio.timeout(10):
            served = b""
            while served != b"near":  # its breaker tries it again when its wait is over
                served = (await ask(w.app, chat("ok"))).header(b"x-edge-region") or b""


async def test_a_region_that_is_reset_in_the_middle_of_a_stream_is_told_in_band(tmp_path: Path) -> None:
    async with wan(tmp_path, (5, 20), SLOW) as w:
        exchange = begin(w.app, chat("stall-after-3", stream=True))
        await exchange.until(lambda seen: "🌍".encode() in seen.body)
        w.near.relay.kill()
        await exchange.done()
        assert exchange.events()[-1]["error"]["code"] == "upstream_failed"
        assert b"[DONE]" not in exchange.body


def native(w: Wan, monkeypatch: pytest.MonkeyPatch) -> tuple[Native, Native]:
    near, far = Native(w.near.fake, 1), Native(w.far.fake, 2)

    async def answer(x: fake_exchange.Exchange) -> None:
        await (near if x.node is w.near.fake else far)(x)

    monkeypatch.setitem(fake_behaviours.BEHAVIOURS, "ok", answer)
    return near, far


def stop_after(
    count: int, fault: Callable[[], None]
) -> Callable[[fake_exchange.Exchange, list[bytes]], Awaitable[None]]:
    async def end(x: fake_exchange.Exchange, events: list[bytes]) -> None:
        await x.events(*events[:count])
        await x.node.gate.wait()
        fault()
        await x.forever()

    return end


@pytest.mark.parametrize("fault", ["swallow", "reset"])
async def test_a_native_stream_outlives_its_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    async with wan(tmp_path, (5, 20), GatewayLimits(resume_after_s=0.3)) as w:
        near, far = native(w, monkeypatch)
        near.ends = [stop_after(9, w.near.swallow if fault == "swallow" else w.near.relay.kill)]
        exchange = begin(w.app, chat("ok", stream=True))
        await exchange.until(lambda seen: seen.body.count(b"data: ") >= 3)
        w.near.fake.gate.set()
        await exchange.done()
        choices = [choice for chunk in exchange.events()[:-1] for choice in chunk["choices"]]
        assert exchange.events()[-1] == "[DONE]"
        assert "".join(choice["delta"].get("content", "") for choice in choices) == text_of(1)
        assert len(far.resumes) == 1
