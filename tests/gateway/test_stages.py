"""Requests that are under way together take each stage together."""

from __future__ import annotations

import asyncio

from edgeproxy.gateway.stages import CROWD, Stages


async def passed(count: int) -> list[int]:
    """Which of so many requests was at which stage, in the order in which they ran."""
    stages, order = Stages(), list[int]()

    async def request() -> None:
        for stage in range(3):
            await stages.pause()
            order.append(stage)

    stages.under_way = count
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(request())
    return order


async def test_a_crowd_goes_stage_by_stage() -> None:
    assert await passed(CROWD) == [0] * CROWD + [1] * CROWD + [2] * CROWD


async def test_few_requests_wait_for_nobody() -> None:
    assert await passed(1) == [0, 1, 2]
    assert await passed(2) == [0, 1, 2] * 2


async def test_a_request_can_be_cancelled_between_two_stages() -> None:
    stages = Stages()
    stages.under_way = CROWD

    async def request() -> None:
        await stages.pause()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    task.cancel()
    assert (await asyncio.gather(task, return_exceptions=True))[0].__class__ is asyncio.CancelledError
