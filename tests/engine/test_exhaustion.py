"""Memory that runs out, and clients that leave, at every point of a request's life: nothing is lost or wrong."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from edgeproxy.protocol.openai.errors import ApiError
from engine.admission import Mode
from engine.executor.base import Limits
from engine.step import Finish
from tests.engine.fake_executor import FakeExecutor, expected
from tests.engine.scheduling import Bench, DictTier

CANCELS = 2000
QUEUE = 8


def bench_of(blocks: int, mode: Mode, tier: bool) -> Bench:
    limits = Limits(slots=4, blocks=blocks, step_tokens=16, context=160, vocab=1000)
    return Bench(limits, queue=QUEUE, mode=mode, quantum_s=1e6, tier=DictTier(FakeExecutor(), 20, 7) if tier else None)


@pytest.mark.parametrize("tier", [False, True], ids=["memory", "second tier"])
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("blocks", range(6, 22))
def test_blocks_run_out_at_any_point(blocks: int, mode: Mode, tier: bool) -> None:
    """One load in pools of any size: blocks run out in the queue, within prompts, while decoding, while loading."""
    bench = bench_of(blocks, mode, tier)
    for turn in range(2):
        for number, (prompt, max_tokens) in enumerate([(70, 20), (9, 75), (33, 40), (16, 60), (70, 9), (1, 90)]):
            bench.add(f"{number}{turn}", prompt, max_tokens, salt=b"a" if number % 2 else b"b")
        bench.run()
    for name, request in bench.requests.items():
        assert bench.tokens(name) == expected(request.prompt, request.max_tokens)
        assert bench.finishes(name) == [Finish.LENGTH]
    assert bench.scheduler.load().blocks_spare == blocks
    if mode is Mode.GUARANTEE:
        assert bench.gauges.preemptions == 0
    elif 8 <= blocks < 10:
        assert bench.gauges.preemptions > 0


@pytest.mark.parametrize("mode", Mode)
def test_after_two_thousand_cancels_every_block_is_where_it_belongs(mode: Mode) -> None:
    rng = random.Random(5)
    bench = bench_of(14, mode, tier=True)
    phases: Counter[str] = Counter()
    live: list[str] = []
    number = 0
    while sum(phases.values()) < CANCELS:
        while len(live) < QUEUE + 4 and rng.random() < 0.8:
            number += 1
            shared = [rng.randrange(3)] * rng.choice([0, 16, 40, 64])
            prompt = [*shared, *(rng.randrange(1000) for _ in range(rng.randrange(1, 30)))]
            try:
                bench.add(f"{number}", prompt, rng.randrange(1, 60), salt=rng.choice([b"a", b"b"]))
            except ApiError as refusal:
                assert refusal.status == 429
                break
            live.append(f"{number}")
        for _ in range(rng.randrange(4)):
            bench.submit()
            if bench.executor.submitted and rng.random() < 0.7:
                bench.collect()
        live = [name for name in live if name in bench.requests and not bench.finishes(name)]
        if live and rng.random() < 0.7:
            name = rng.choice(live)
            phases[phase_of(bench, name)] += 1
            bench.abort(name)
    bench.run()
    assert min(phases[phase] for phase in ("queued", "within its prompt", "decoding")) > 50
    load = bench.scheduler.load()
    assert (load.running, load.waiting, load.blocks_spare) == (0, 0, bench.limits.blocks)
    assert bench.gauges.aborts == CANCELS
    assert bench.gauges.abort_steps_max <= 2
    for name, request in bench.requests.items():
        whole = expected(request.prompt, request.max_tokens)
        assert bench.tokens(name) == whole[: len(bench.tokens(name))]
        assert len(bench.finishes(name)) == 1


def phase_of(bench: Bench, name: str) -> str:
    if bench.tokens(name):
        return "decoding"
    return "within its prompt" if bench.steps(name) else "queued"


def test_nobody_waits_for_ever_however_many_come_before_it_is_done() -> None:
    """A large request of low priority, while small urgent ones of other tenants keep coming."""
    bench = bench_of(10, Mode.GUARANTEE, tier=False)
    bench.add("large", 60, 90, salt=b"patient", priority=3)
    number = 0
    while not bench.finishes("large"):
        assert number < 3000, "it starves"
        while bench.scheduler.load().waiting < QUEUE:
            number += 1
            bench.add(f"{number}", [number % 1000] * 10, 20, salt=b"%d" % (number % 5))
        bench.submit()
        bench.submit()
        bench.collect()
    assert bench.tokens("large") == expected(bench.requests["large"].prompt, 90)
