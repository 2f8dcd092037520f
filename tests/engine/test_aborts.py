"""Whenever an end is asked for, it has come with the second step counter from then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from engine.generation import Generation
from engine.loop import EngineLoop
from engine.scheduler import Scheduler
from engine.sequence import GenerationRequest
from engine.step import Finish, Sampling, StepPlan, StepResult
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import until

MOMENTS = 24
"""Looked at from the start of an idle engine: by then the steps are all alike."""


@dataclass
class Watched(FakeExecutor):
    moment: Callable[[], None] = lambda: None

    def submit(self, plan: StepPlan) -> None:
        super().submit(plan)
        self.moment()

    def collect(self) -> StepResult:
        self.moment()
        result = super().collect()
        self.moment()
        return result


async def last_word(generation: Generation) -> Finish:
    async with asyncio.timeout(20):
        while (finish := (await generation.next()).finish) is None:
            pass
        return finish


@pytest.mark.parametrize("when", range(MOMENTS))
async def test_an_end_asked_for_at_any_moment_comes_within_two_steps(
    when: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each moment is one of the engine's thread between two things that it does."""
    executor = Watched()
    loop = EngineLoop(executor)
    passed, asked_after = 0, 0
    leaver: Generation | None = None

    def moment() -> None:
        nonlocal passed, asked_after
        if passed == when:
            assert leaver is not None
            asked_after = len(executor.plans)
            leaver.abort()
        passed += 1

    plan = Scheduler.plan

    def planned(self: Scheduler) -> StepPlan | None:
        moment()
        found = plan(self)
        moment()
        return found

    executor.moment = moment
    begin = threading.Event()
    take = EngineLoop._take

    def taken(self: EngineLoop) -> list[object]:
        assert begin.wait(20)
        return take(self)  # type: ignore[return-value]

    monkeypatch.setattr(Scheduler, "plan", planned)
    monkeypatch.setattr(EngineLoop, "_take", taken)  # both have come before the first step
    loop.start()
    leaver = loop.generate(GenerationRequest("leaves", tuple(range(10)), Sampling(), 200))
    stays = loop.generate(GenerationRequest("stays", tuple(range(20, 25)), Sampling(), 60))
    begin.set()
    assert await last_word(stays) is Finish.LENGTH
    assert await last_word(leaver) is Finish.ABORT
    await until(lambda: loop.load().blocks_spare == executor.limits.blocks)
    loop.stop()
    (slot,) = {row.slot for row in executor.plans[0].rows if row.tokens[0] == 0}
    late = executor.plans[asked_after + 1 :]
    assert late, "the other goes on"
    assert not [plan.step for plan in late if slot in {row.slot for row in plan.rows}]
    assert loop.gauges.aborts == 1
    assert loop.gauges.abort_steps_max <= 2
