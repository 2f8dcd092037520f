"""What was evicted is found again, in the second tier, and is the same."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from engine.admission import Mode
from engine.executor.base import Limits
from engine.loop import EngineLoop
from engine.sequence import Delta, GenerationRequest
from engine.step import Sampling
from engine.store import BlockStore
from engine.tables import LOADS
from tests.engine.fake_executor import FakeExecutor, expected
from tests.engine.scheduling import Bench, DictTier

SMALL = Limits(slots=3, blocks=12, step_tokens=16, context=190, vocab=1000)


def evicting(limits: Limits = SMALL, most: int = 1000, loses: int = 0) -> Bench:
    """A prompt of 100 tokens is computed, and given up for others."""
    bench = Bench(limits, quantum_s=1e6, tier=DictTier(FakeExecutor(), most, loses))
    for prompt in ("a1", "b1", "c1"):
        bench.add(prompt, 100, 40)
        bench.run()
    return bench


def test_an_evicted_prefix_is_loaded_instead_of_computed() -> None:
    bench = evicting()
    steps = len(bench.executor.plans)
    bench.add("a2", 100, 40)
    bench.run()
    assert bench.cached("a2") == 96
    assert bench.executor.plans[steps].rows[0].start == 96
    assert bench.tokens("a2") == bench.tokens("a1") == expected(bench.requests["a1"].prompt, 40)
    assert bench.gauges.blocks_loaded == 6


def test_what_is_loaded_is_shared_from_then_on() -> None:
    bench = evicting()
    bench.add("a2", 100, 40)
    bench.run()
    loaded = bench.gauges.blocks_loaded
    bench.add("a3", 100, 40)
    bench.run()
    assert bench.cached("a3") == 96
    assert bench.gauges.blocks_loaded == loaded


def test_tenants_of_different_salts_find_nothing_of_each_other() -> None:
    bench = evicting()
    bench.add("a2", 100, 40, salt=b"other")
    bench.run()
    assert bench.cached("a2") == 0
    assert bench.tokens("a2") == bench.tokens("a1")


def test_what_preempted_ones_take_up_again_from_the_tier_counts_as_loaded_no_more_than_as_reused() -> None:
    bench = Bench(mode=Mode.OPTIMISTIC, tier=DictTier(FakeExecutor()))
    for name in "abc":
        bench.add(name, 12, 130)
    bench.run()
    assert bench.tier is not None
    assert bench.gauges.preemptions > 0
    assert bench.tier.loaded > 0
    assert (bench.gauges.blocks_loaded, bench.gauges.blocks_reused) == (0, 0)


def test_what_the_tier_lost_is_computed() -> None:
    bench = evicting(loses=3)
    bench.add("a2", 100, 40)
    bench.run()
    assert bench.cached("a2") == 4 * 16  # of six, every third was lost
    assert bench.tokens("a2") == bench.tokens("a1")


def test_a_long_prefix_is_loaded_in_parts_while_others_decode() -> None:
    limits = Limits(slots=3, blocks=60, step_tokens=64, context=900, vocab=1000)
    bench = Bench(limits, quantum_s=1e6, tier=DictTier(FakeExecutor()))
    for prompt in ("a1", "b1"):
        bench.add(prompt, 800, 4)
        bench.run()
    bench.add("c1", 10, 60)
    bench.run(until=lambda: len(bench.tokens("c1")) > 1)
    bench.add("a2", 800, 4)
    rows = []
    while not bench.finishes("a2"):
        loaded = bench.gauges.blocks_loaded
        plan = bench.submit()
        assert bench.gauges.blocks_loaded - loaded <= LOADS
        if plan is not None:
            rows.append(len(plan.rows))
        if bench.executor.submitted:
            bench.collect()
    assert rows[:3] == [1, 1, 2], "the other goes on alone while most blocks are loaded"
    bench.run()
    assert bench.cached("a2") == 784
    assert bench.gauges.blocks_loaded > 2 * LOADS
    assert bench.tokens("a2") == bench.tokens("a1")


def test_what_cannot_be_trusted_is_not_kept() -> None:
    bench = Bench(SMALL, quantum_s=1e6, tier=DictTier(FakeExecutor()))
    bench.executor.diverges_at = 100
    bench.add("a1", 100, 2)
    bench.run()
    bench.executor.diverges_at = None
    bench.add("b1", 180, 2)
    bench.run()
    bench.add("c1", 180, 2)
    bench.run()
    assert bench.tier is not None
    bench.add("a2", 100, 2)
    bench.run()
    assert bench.cached("a2") == 0


async def answered(loop: EngineLoop, name: str, prompt: int) -> tuple[tuple[int, ...], int]:
    """Tokens, and how many of the prompt were cached."""
    generation = loop.generate(GenerationRequest(name, tuple(range(prompt)), Sampling(), 5))
    tokens: tuple[int, ...] = ()
    cached = 0
    delta = Delta(())
    async with asyncio.timeout(20):
        while delta.finish is None:
            delta = await generation.next()
            tokens, cached = tokens + delta.tokens, max(cached, delta.cached)
    return tokens, cached


async def test_a_restarted_engine_keeps_its_prefixes(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        executor = FakeExecutor()
        store = BlockStore(tmp_path / "kv", 1 << 20, numerics="fp_fake", block_bytes=executor.block_bytes)
        loop = EngineLoop(executor, store=store, clock=time.monotonic)
        loop.start()
        found.append(await answered(loop, "a", 100))
        loop.stop()
    assert [cached for _, cached in found] == [0, 96]
    assert found[0][0] == found[1][0]


async def test_what_runs_when_the_engine_stops_is_kept_as_far_as_it_was_computed(tmp_path: Path) -> None:
    executor = FakeExecutor()
    store = BlockStore(tmp_path / "kv", 1 << 20, numerics="fp_fake", block_bytes=executor.block_bytes)
    loop = EngineLoop(executor, store=store, clock=time.monotonic)
    loop.start()
    generation = loop.generate(GenerationRequest("a", tuple(range(100)), Sampling(), 150))
    await generation.next()
    loop.stop()
    again = BlockStore(tmp_path / "kv", 1 << 20, numerics="fp_fake", block_bytes=executor.block_bytes)
    assert len(again) >= 6
    again.close()
