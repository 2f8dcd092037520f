"""Soaks, run by `scripts/test --long`."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import httpx
import pytest

from tests.e2e.deployment import MODEL, Deployment, both_ready, wait_until

pytestmark = [pytest.mark.xdist_group("e2e"), pytest.mark.long]
KILLS = 8


async def test_killing_nodes_in_turn_fails_no_request_before_its_first_token(own_deployment: Deployment) -> None:
    """Whole answers: nothing of them reaches the client before the end, so that every death can be hidden."""
    deployment = own_deployment
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Say hello."}], "temperature": 0, "max_tokens": 24}
    statuses: list[int] = []
    texts: set[str] = set()
    stop = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> None:
        while not stop.is_set():
            answer = await client.post(f"{deployment.base_url}/chat/completions", json=body)
            statuses.append(answer.status_code)
            texts.add(answer.json()["choices"][0]["message"]["content"] if answer.is_success else answer.text)

    async with httpx.AsyncClient(timeout=120) as client, asyncio.TaskGroup() as tasks:
        for _ in range(4):
            tasks.create_task(ask(client))
        for number in range(KILLS):
            port = (deployment.near, deployment.far)[number % 2]
            await asyncio.to_thread(wait_until, lambda: both_ready(deployment), 60, deployment)
            for pid in deployment.children(f"--port {port}"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(wait_until, lambda: not both_ready(deployment), 60, deployment)
        await asyncio.to_thread(wait_until, lambda: both_ready(deployment), 60, deployment)
        stop.set()
    assert len(statuses) > KILLS
    assert set(statuses) == {200}, "".join(line for line in deployment.lines if '"status":200' not in line)
    assert len(texts) == 1


async def test_two_hundred_clients_that_leave_at_any_moment_leave_nothing_behind(own_deployment: Deployment) -> None:
    deployment = own_deployment
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 64, "stream": True}

    async def leave(client: httpx.AsyncClient, number: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02 * (number % 40)):
                await client.post(f"{deployment.base_url}/chat/completions", json={**body, "ignore_eos": True})

    async with httpx.AsyncClient(timeout=120) as client:
        for start in range(0, 200, 20):
            await asyncio.gather(*(leave(client, number) for number in range(start, start + 20)))

    def quiet() -> bool:
        found = [deployment.node_status(port) for port in (deployment.near, deployment.far)]
        return all(node["running"] == node["waiting"] == 0 for node in found) and all(
            node["kv_blocks_free"] + node["kv_blocks_evictable"] == node["kv_blocks_total"] for node in found
        )

    await asyncio.to_thread(wait_until, quiet, 30, deployment)
    for port in (deployment.near, deployment.far):
        assert deployment.node_status(port)["abort_steps_max"] <= 2
