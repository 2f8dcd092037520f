from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.executor.base import Limits
from engine.generation import Generation
from engine.loop import EngineLoop
from engine.sequence import Delta, GenerationRequest
from engine.step import Finish, Sampling
from engine.store import BlockStore
from tests.engine.fake_executor import FakeExecutor, expected

PATIENCE_S = 20


def request(name: str, prompt: int = 10, max_tokens: int = 5) -> GenerationRequest:
    return GenerationRequest(name, tuple(range(prompt)), Sampling(), max_tokens)


@asynccontextmanager
async def running(
    executor: FakeExecutor,
    queue_length: int = 64,
    mode: Mode = Mode.GUARANTEE,
    sleep_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[EngineLoop]:
    loop = EngineLoop(executor, queue_length=queue_length, mode=mode, sleep_s=sleep_s, clock=clock)
    loop.start()
    try:
        yield loop
    finally:
        if executor.gate is not None:
            executor.gate.release(1000)
        loop.stop()


async def all_of(generation: Generation) -> Delta:
    tokens: tuple[int, ...] = ()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            delta = await generation.next()
            tokens += delta.tokens
            if delta.finish is not None:
                return Delta(tokens, delta.finish)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - state of another thread
            await asyncio.sleep(0.001)


async def test_requests_side_by_side_get_their_own_tokens() -> None:
    async with running(FakeExecutor()) as loop:
        generations = [loop.generate(request(f"{n}", prompt=5 + 7 * n, max_tokens=9)) for n in range(8)]
        for n, result in enumerate(await asyncio.gather(*map(all_of, generations))):
            assert result == Delta(tuple(expected(range(5 + 7 * n), 9)), Finish.LENGTH)
        assert loop.live == 0
        assert loop.load().running == 0


async def test_the_next_step_is_submitted_before_the_last_is_collected() -> None:
    executor = FakeExecutor(gate=threading.Semaphore(0))
    async with running(executor) as loop:
        generation = loop.generate(request("a", max_tokens=4))
        await until(lambda: len(executor.plans) == 2)
        assert executor.gate is not None
        executor.gate.release()
        assert (await generation.next()).tokens == tuple(expected(range(10), 1))
        await until(lambda: len(executor.plans) == 3)


async def test_the_first_delta_carries_the_timing() -> None:
    async with running(FakeExecutor(clock=time.monotonic)) as loop:
        delta = await loop.generate(request("a", max_tokens=1)).next()
        assert delta.timing is not None
        assert min(delta.timing.queue_s, delta.timing.prefill_s, delta.timing.first_s) >= 0
        assert sum((delta.timing.queue_s, delta.timing.prefill_s, delta.timing.first_s)) < PATIENCE_S
        assert delta.cached == 0


async def test_deltas_that_nobody_awaited_come_as_one() -> None:
    async with running(FakeExecutor()) as loop:
        generation = loop.generate(request("a", max_tokens=50))
        await until(lambda: generation.ended)
        delta = await generation.next()
        assert delta.tokens == tuple(expected(range(10), 50))
        assert delta.finish is Finish.LENGTH
        assert delta.timing is not None


async def test_an_abort_frees_the_sequence_within_two_steps() -> None:
    executor = FakeExecutor(gate=threading.Semaphore(0))
    assert executor.gate is not None
    async with running(executor) as loop:
        generation = loop.generate(request("a", max_tokens=200))
        executor.gate.release(3)
        await generation.next()
        generation.abort()
        generation.abort()
        executor.gate.release(10)
        assert (await all_of(generation)).finish is Finish.ABORT
        await until(lambda: loop.load().blocks_spare == executor.limits.blocks)
        assert loop.gauges.aborts == 1
        assert loop.gauges.abort_steps_max <= 2
        steps = len(executor.plans)
        assert (await all_of(loop.generate(request("b")))).finish is Finish.LENGTH
        assert len(executor.plans) == steps + 5


async def test_an_abort_of_a_queued_request_ends_it_while_others_run() -> None:
    executor = FakeExecutor(gate=threading.Semaphore(0))
    assert executor.gate is not None
    async with running(executor) as loop:
        first = loop.generate(request("a", max_tokens=240))
        rest = [loop.generate(request(f"b{n}", max_tokens=240)) for n in range(8)]
        rest[-1].abort()
        executor.gate.release(2)
        assert await all_of(rest[-1]) == Delta((), Finish.ABORT)
        assert not first.ended


async def test_a_full_queue_refuses_through_next() -> None:
    executor = FakeExecutor(gate=threading.Semaphore(0))
    async with running(executor, queue_length=0) as loop:
        loop.generate(request("a", max_tokens=200))
        loop.generate(request("b", max_tokens=200))
        assert executor.gate is not None
        executor.gate.release(5)
        generations = [loop.generate(request(f"c{n}", max_tokens=240)) for n in range(4)]
        with pytest.raises(ApiError, match="slots_full"):
            await generations[-1].next()


async def test_an_idle_engine_uses_no_processor_time() -> None:
    async with running(FakeExecutor()) as loop:
        await all_of(loop.generate(request("a")))
        await until(lambda: loop.load().running == 0)
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1


async def test_a_failing_executor_ends_every_request_and_refuses_new_ones() -> None:
    executor = FakeExecutor(fails_at=3)
    async with running(executor) as loop:
        generations = [loop.generate(request(f"{n}", max_tokens=50)) for n in range(6)]
        for result in await asyncio.gather(*map(all_of, generations)):
            assert result.finish is Finish.ERROR
        async with asyncio.timeout(PATIENCE_S):
            await loop.failed.wait()
        assert "the device is gone" in str(loop.failure)
        with pytest.raises(ApiError, match="engine_failed"):
            loop.generate(request("late"))
    assert executor.closed


async def test_stop_ends_what_runs_and_closes_the_executor() -> None:
    executor = FakeExecutor(gate=threading.Semaphore(0))
    async with running(executor) as loop:
        generation = loop.generate(request("a", max_tokens=200))
        await until(lambda: len(executor.plans) == 2)
    assert (await all_of(generation)).finish is Finish.ABORT
    assert executor.closed


async def test_a_step_that_hangs_is_seen() -> None:
    executor = FakeExecutor(gate=threading.Semaphore(0))
    async with running(executor) as loop:
        assert loop.busy_since is None
        loop.generate(request("a", max_tokens=2))
        await until(lambda: loop.busy_since is not None and loop.now() > loop.busy_since + 0.01)
        assert executor.gate is not None
        executor.gate.release(2)
        await until(lambda: loop.busy_since is None)


async def test_each_step_wakes_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = FakeExecutor()
    event_loop = asyncio.get_running_loop()
    wakes: list[int] = []
    call = event_loop.call_soon_threadsafe

    def counted(*args: object, **options: object) -> asyncio.Handle:
        wakes.append(threading.get_ident())
        return call(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(event_loop, "call_soon_threadsafe", counted)
    async with running(executor) as loop:
        await asyncio.gather(*(all_of(loop.generate(request(f"{n}", prompt=2, max_tokens=20))) for n in range(4)))
    assert len(wakes) <= len(executor.plans)


async def test_what_one_request_computed_the_next_finds_and_the_feed_tells() -> None:
    async with running(FakeExecutor()) as loop:
        await all_of(loop.generate(request("a", prompt=40, max_tokens=2)))
        delta = await loop.generate(request("b", prompt=40, max_tokens=2)).next()
        assert delta.cached == 32
        event = await loop.feed.reader().next()
        assert event is not None
        assert event.count(b'["') == 2


async def test_an_optimistic_engine_preempts_and_says_the_same() -> None:
    limits = Limits(slots=4, blocks=12, step_tokens=16, context=160, vocab=1000)
    executor = FakeExecutor(built_for=limits)
    async with running(executor, mode=Mode.OPTIMISTIC) as loop:
        generations = [loop.generate(request(f"{n}", prompt=9 + n, max_tokens=120)) for n in range(5)]
        for n, result in enumerate(await asyncio.gather(*map(all_of, generations))):
            assert result == Delta(tuple(expected(range(9 + n), 120)), Finish.LENGTH)
        assert loop.gauges.preemptions > 0
        assert loop.load().blocks_spare == limits.blocks


async def test_what_is_condemned_ends_everything_with_an_error_and_keeps_nothing(tmp_path: Path) -> None:
    executor = FakeExecutor(gate=threading.Semaphore(2))
    path = tmp_path / "kv"
    store = BlockStore(path, 1 << 20, numerics=executor.numerics, block_bytes=executor.block_bytes)
    store.put(bytes(32), bytes(executor.block_bytes), timeout_s=PATIENCE_S)
    loop = EngineLoop(executor, store=store)
    loop.start()
    runs = loop.generate(request("a", max_tokens=50))
    loop.condemn(RuntimeError("its weights are damaged"))
    assert executor.gate is not None
    executor.gate.release(1000)
    assert (await all_of(runs)).finish is Finish.ERROR
    await loop.failed.wait()
    assert "its weights are damaged" in str(loop.failure)
    with pytest.raises(ApiError, match="engine_failed"):
        loop.generate(request("b"))
    loop.stop()
    again = BlockStore(path, 1 << 20, numerics=executor.numerics, block_bytes=executor.block_bytes)
    assert len(again) == 0
    again.close()


async def test_a_scheduler_that_plans_nothing_for_what_runs_is_a_failure_and_no_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(FakeExecutor()) as loop:
        monkeypatch.setattr("engine.scheduler.Scheduler.plan", lambda _: None)
        assert (await all_of(loop.generate(request("a")))).finish is Finish.ERROR
        assert "no step can be planned" in str(loop.failure)


async def test_blocks_that_do_not_add_up_are_noticed_once_the_engine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(FakeExecutor()) as loop:
        monkeypatch.setattr("engine.kv.BlockPool.release", lambda *_: None)
        assert (await all_of(loop.generate(request("a")))).finish is Finish.LENGTH
        async with asyncio.timeout(PATIENCE_S):
            await loop.failed.wait()
        assert "0 tables name it" in str(loop.failure)
