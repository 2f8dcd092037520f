"""Two regions on one machine: distance is measured, the nearest answers, and its death is invisible."""

from __future__ import annotations

import os
import signal

import httpx
import pytest

from tests.e2e.deployment import MODEL, Deployment, nodes, wait_until

pytestmark = pytest.mark.xdist_group("e2e")


def ask(deployment: Deployment, *, stream: bool = False) -> httpx.Response:
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": MODEL, "messages": [question], "temperature": 0, "max_tokens": 16, "stream": stream}
    return httpx.post(f"{deployment.base_url}/chat/completions", json=body, timeout=60)


def test_far_is_40_ms_away_and_near_is_here(deployment: Deployment) -> None:
    def measured() -> bool:
        found = nodes(deployment)
        near, far = (float(found[name]["rtt_s"]) * 1e3 for name in ("near-1", "far-1"))
        return abs(far - 40) <= 3 and near < 3

    wait_until(measured, 60, deployment)


def test_the_nearest_region_answers_and_says_where_the_time_went(deployment: Deployment) -> None:
    for stream in (False, True):
        answer = ask(deployment, stream=stream)
        assert answer.status_code == 200
        assert answer.headers["x-edge-region"] == "near"
        assert answer.headers["x-request-id"]
        timing = {entry.split(";")[0].strip() for entry in answer.headers["server-timing"].split(",")}
        assert timing >= {"rtt", "edge", "queue", "prefill", "first"}


def test_the_death_of_near_is_invisible_and_it_comes_back_by_itself(own_deployment: Deployment) -> None:
    deployment = own_deployment
    expected = ask(deployment).json()["choices"][0]["message"]
    (near,) = deployment.children(f"--port {deployment.near}")
    os.kill(near, signal.SIGKILL)
    for _ in range(5):
        answer = ask(deployment)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"] == expected
        if answer.headers["x-edge-region"] == "near":
            break  # started again already
    else:
        assert answer.headers["x-edge-region"] == "far"
    wait_until(lambda: ask(deployment).headers["x-edge-region"] == "near", 60, deployment)
    (again,) = deployment.children(f"--port {deployment.near}")
    assert again != near
