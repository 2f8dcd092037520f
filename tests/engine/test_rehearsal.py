"""A node warms itself up after it is ready, and nobody notices."""

from __future__ import annotations

import asyncio
import itertools
import threading
from contextlib import suppress

import pytest

from engine.loop import EngineLoop
from engine.rehearsal import ROUNDS, Rehearsal
from engine.sequence import Delta, GenerationRequest
from engine.startup import Text
from engine.step import Sampling
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor, expected
from tests.engine.serving import LIMITS
from tests.engine.test_loop import all_of, running, until


@pytest.fixture
def text(tokenizer: Tokenizer, chat_template: ChatTemplate) -> Text:
    return Text(tokenizer, chat_template)


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.rehearsal.REST_S", 0.001)


def request(name: str, prompt: int = 40, max_tokens: int = 5) -> GenerationRequest:
    return GenerationRequest(name, tuple(range(prompt)), Sampling(), max_tokens)


def at_rest(loop: EngineLoop) -> bool:
    return loop.load().blocks_free == LIMITS.blocks


async def test_rounds_of_short_long_and_several_leave_no_trace(text: Text) -> None:
    executor = FakeExecutor(built_for=LIMITS)
    async with running(executor) as loop:
        rehearsal = Rehearsal(loop, text)
        await rehearsal.run()
        await until(lambda: at_rest(loop))
        assert 2 <= len(rehearsal.rounds) <= ROUNDS
        assert max(len(plan.rows) for plan in executor.plans) == LIMITS.slots, "several side by side"
        assert max(row.start for plan in executor.plans for row in plan.rows) > 64, "a long one"
        gauges = loop.gauges
        assert (gauges.blocks_computed, gauges.blocks_reused, gauges.aborts) == (0, 0, 0)
        assert gauges.tokens == 0
        assert (sum(gauges.gap.counts), sum(gauges.wake.counts)) == (0, 0)
        assert loop.requests == 0
        assert loop.feed.seq == 0, "no block was told of"
        assert (await loop.generate(request("a")).next()).cached == 0
        assert sum(gauges.wake.counts) == 1


async def test_it_ends_when_the_next_round_takes_as_long_as_the_last(text: Text) -> None:
    times = iter([10.0, 20.0, 19.0])
    async with running(FakeExecutor(built_for=LIMITS)) as loop:
        rehearsal = Rehearsal(loop, text)

        async def round_() -> float:
            return next(times)

        rehearsal._round = round_  # type: ignore[method-assign]
        await rehearsal.run()
    assert rehearsal.rounds == [10.0, 20.0, 19.0]


async def test_it_ends_though_it_never_settles(text: Text) -> None:
    times = itertools.count(1)
    async with running(FakeExecutor(built_for=LIMITS)) as loop:
        rehearsal = Rehearsal(loop, text)

        async def round_() -> float:
            return float(2 ** next(times))

        rehearsal._round = round_  # type: ignore[method-assign]
        await rehearsal.run()
    assert len(rehearsal.rounds) == ROUNDS


async def test_a_request_ends_it_at_once_and_it_is_taken_up_again(text: Text) -> None:
    gate = threading.Semaphore(0)
    executor = FakeExecutor(built_for=LIMITS, gate=gate)
    async with running(executor) as loop:
        rehearsal = Rehearsal(loop, text)
        running_it = asyncio.create_task(rehearsal.run())
        await until(lambda: len(executor.plans) == 1)
        generation = loop.generate(request("a"))
        assert loop.live == 1, "nobody else is seen"
        for _ in range(2):
            gate.release()
        await until(lambda: len(executor.plans) >= 2)
        assert executor.plans[1].rows[0].tokens == tuple(range(40)), "one step of it is all that one waits for"
        assert loop.load().running == 1
        gate.release(100_000)
        assert (await all_of(generation)).tokens == tuple(expected(range(40), 5))
        await running_it
        assert loop.gauges.aborts == 0
        assert rehearsal.rounds


async def test_a_small_node_rehearses_what_it_can_hold(text: Text) -> None:
    limits = type(LIMITS)(slots=1, blocks=1, step_tokens=4, context=16, vocab=49152)
    async with running(FakeExecutor(built_for=limits)) as loop:
        rehearsal = Rehearsal(loop, text)
        await rehearsal.run()
        assert rehearsal.rounds


async def test_it_ends_with_the_engine(text: Text) -> None:
    async with running(FakeExecutor(built_for=LIMITS, fails_at=2)) as loop:
        async with asyncio.timeout(20):
            await Rehearsal(loop, text).run()
        assert loop.failure is not None


async def test_an_idle_engine_gives_its_memory_back_and_wakes_with_a_request() -> None:
    executor = FakeExecutor()
    async with running(executor, sleep_s=0.02) as loop:
        first = await all_of(loop.generate(request("a")))
        await until(lambda: loop.sleeping)
        assert executor.releases == 1
        assert loop.load().blocks_free == executor.limits.blocks
        await until(lambda: b'"blocks":[]' in b"".join(loop.feed.snapshot()))
        assert not loop.woke.is_set()
        again = loop.generate(request("b"))
        delta = await again.next()
        assert delta.cached == 0
        await asyncio.wait_for(loop.woke.wait(), 20)
        rest = await all_of(again) if delta.finish is None else Delta(())
        assert delta.tokens + rest.tokens == first.tokens == tuple(expected(range(40), 5))


async def test_it_comes_again_after_each_sleep(text: Text) -> None:
    executor = FakeExecutor(built_for=LIMITS)
    async with running(executor, sleep_s=0.5) as loop:
        rehearsal = Rehearsal(loop, text)
        task = asyncio.create_task(rehearsal.keep_warm())
        for sleeps in (1, 2):
            await until(lambda: loop.sleeping)
            assert executor.releases >= sleeps
            before = len(executor.plans)
            rehearsal.rounds.clear()
            await all_of(loop.generate(request(f"user {sleeps}")))
            await until(lambda: len(rehearsal.rounds) >= 2)
            assert len(executor.plans) > before
        task.cancel()


async def test_rehearsals_neither_put_sleep_off_nor_end_it(text: Text) -> None:
    """Time stands still but for what the test lets pass: only the last request can be what sleep is due from."""
    times = [0.0]
    executor = FakeExecutor(built_for=LIMITS)
    async with running(executor, sleep_s=3600.0, clock=lambda: times[0]) as loop:
        rehearsal = Rehearsal(loop, text)
        await rehearsal._round()
        assert not loop.sleeping
        await all_of(loop.generate(request("a")))
        await until(lambda: not loop._asked)  # it rests from now on
        times[0] += 3500
        await rehearsal._round()
        assert not loop.sleeping
        times[0] += 101
        with suppress(ExceptionGroup):
            await rehearsal._round()  # its end is when the engine looks again
        await until(lambda: loop.sleeping)
        before = len(executor.plans)
        with pytest.raises(ExceptionGroup):
            await rehearsal._round()
        rehearsal.rounds.clear()
        await rehearsal.run()
        assert (loop.sleeping, len(executor.plans), rehearsal.rounds) == (True, before, [])
        assert not loop.woke.is_set()
        await all_of(loop.generate(request("b")))
        assert not loop.sleeping
        assert loop.woke.is_set()


async def test_a_node_that_nobody_can_ask_yet_does_not_sleep(text: Text) -> None:
    """Where the rehearsal comes before the node is ready, however long it takes."""
    times = itertools.count(step=200)
    async with running(FakeExecutor(built_for=LIMITS), sleep_s=3600.0, clock=lambda: float(next(times))) as loop:
        rehearsal = Rehearsal(loop, text)
        await rehearsal.run(alone=True)
        assert rehearsal.rounds
        assert sum(rehearsal.rounds) > 3600.0
        assert not loop.sleeping


async def test_an_engine_that_sleeps_stops() -> None:
    async with running(FakeExecutor(), sleep_s=0.01) as loop:
        await until(lambda: loop.sleeping)
        loop.stop()
