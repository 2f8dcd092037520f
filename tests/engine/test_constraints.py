"""A constrained sequence samples only what may follow, beside others, ahead of results, and over preemptions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from engine.admission import Mode
from engine.executor.base import Limits
from engine.loop import EngineLoop
from engine.sequence import GenerationRequest
from engine.step import Finish, Sampling
from tests.engine.fake_executor import FakeExecutor, expected
from tests.engine.test_loop import all_of, request, running, until

VOCAB = 1000


@dataclass
class Follows:
    """Only `after(tokens so far)` may come next; `ends` tokens in all, where set."""

    ends: int | None = None
    fails: int | None = None
    tokens: list[int] = field(default_factory=list)

    def mask(self) -> bytes | None:
        return (1 << follower(self.tokens)).to_bytes(-(-VOCAB // 32) * 4, "little")

    def forced(self, most: int) -> tuple[int, ...]:
        return ()

    def accept(self, token: int) -> Finish | None:
        assert token == follower(self.tokens), "not what was allowed"
        self.tokens.append(token)
        if len(self.tokens) == self.fails:
            return Finish.RULES
        return Finish.STOP if len(self.tokens) == self.ends else None


def follower(tokens: Sequence[int]) -> int:
    return (7 * len(tokens) + sum(tokens)) % VOCAB


def followers(count: int) -> tuple[int, ...]:
    tokens: list[int] = []
    for _ in range(count):
        tokens.append(follower(tokens))
    return tuple(tokens)


def constrained(name: str, constraint: Follows, prompt: int = 10, max_tokens: int = 8) -> GenerationRequest:
    sampling = Sampling(constrained=True, first=prompt)
    return replace(request(name, prompt, max_tokens), sampling=sampling, constraint=constraint)


async def test_each_token_is_one_that_was_allowed_after_those_before_it() -> None:
    async with running(FakeExecutor()) as loop:
        free = [loop.generate(request(f"free{n}", 5 + n, 9)) for n in range(2)]
        bound = [loop.generate(constrained(f"bound{n}", Follows(), 5 + 9 * n)) for n in range(2)]
        for generation in bound:
            result = await all_of(generation)
            assert (result.tokens, result.finish) == (followers(8), Finish.LENGTH)
        for n, generation in enumerate(free):
            assert (await all_of(generation)).tokens == tuple(expected(range(5 + n), 9))


async def test_it_ends_where_nothing_may_follow_and_its_last_token_counts() -> None:
    async with running(FakeExecutor()) as loop:
        result = await all_of(loop.generate(constrained("a", Follows(ends=3))))
        assert (result.tokens, result.finish) == (followers(3), Finish.STOP)


async def test_rules_that_fail_end_their_sequence_alone() -> None:
    async with running(FakeExecutor()) as loop:
        bad, good = loop.generate(constrained("bad", Follows(fails=2))), loop.generate(request("good", 4, 9))
        assert (await all_of(bad)).finish is Finish.RULES
        assert (await all_of(good)).tokens == tuple(expected(range(4), 9))
        assert loop.failure is None


async def test_an_aborted_one_keeps_nobody_waiting() -> None:
    async with running(FakeExecutor()) as loop:
        generation = loop.generate(constrained("a", Follows(), max_tokens=200))
        async with asyncio.timeout(20):
            while not (await generation.next()).tokens:
                pass
        generation.abort()
        await until(lambda: loop.load().running == 0)
        assert (await all_of(loop.generate(request("b", 4, 3)))).tokens == tuple(expected(range(4), 3))


async def test_preempted_ones_go_on_with_the_tokens_they_have() -> None:
    limits = Limits(slots=4, blocks=9, step_tokens=16, context=96, vocab=VOCAB)
    gate = threading.Semaphore(0)  # all are there before the first step ends
    async with running(FakeExecutor(built_for=limits, gate=gate), mode=Mode.OPTIMISTIC) as loop:
        generations = [loop.generate(constrained(f"{n}", Follows(), 10 + n, 80)) for n in range(3)]
        gate.release(10_000)
        for generation in generations:
            assert (await all_of(generation)).tokens == followers(80)
        assert loop.gauges.preemptions > 0


@pytest.mark.parametrize("steps", [1, 2])
async def test_the_engine_stops_while_one_runs(steps: int) -> None:
    gate = threading.Semaphore(steps)
    executor = FakeExecutor(gate=gate)
    loop = EngineLoop(executor)
    loop.start()
    generation = loop.generate(constrained("a", Follows(), max_tokens=200))
    async with asyncio.timeout(20):
        told = 0
        while told < steps:
            told += len((await generation.next()).tokens)
    await until(lambda: executor.waits)  # in the step behind those
    stopping = asyncio.create_task(asyncio.to_thread(loop.stop))
    await until(lambda: not loop._mailbox.empty())
    gate.release(100)
    await stopping
    assert (await all_of(generation)).finish is Finish.ABORT
