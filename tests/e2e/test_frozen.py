"""Node processes that are stopped, not killed: no connection ends, and still nobody waits without end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import orjson
import pytest

from tests.e2e.deployment import Deployment, both_ready, wait_until
from tests.e2e.test_regions import ask

pytestmark = pytest.mark.xdist_group("e2e")


@contextmanager
def frozen(deployment: Deployment) -> Iterator[Callable[[int], None]]:
    """Freezes the node of a port; all go on at the end."""
    stopped: list[int] = []

    def freeze(port: int) -> None:
        (pid,) = deployment.children(f"--port {port}")
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)

    try:
        yield freeze
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)


def told(deployment: Deployment) -> list[dict[str, Any]]:
    """The proxy's log lines of nodes that fell silent."""
    return [orjson.loads(line) for line in deployment.lines if '"node_silent"' in line]


def silences(deployment: Deployment, node: str, region: str) -> float:
    name = f'edgeproxy_node_silences_total{{node="{node}",region="{region}"}} '
    lines = httpx.get(f"http://127.0.0.1:{deployment.admin}/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name)).removeprefix(name))


def test_frozen_nodes_cost_nobody_more_than_a_moment_and_are_told_of(own_deployment: Deployment) -> None:
    deployment = own_deployment
    with frozen(deployment) as freeze:
        freeze(deployment.near)
        pinned = ask(deployment, region="near")
        assert (pinned.status_code, pinned.json()["error"]["code"]) == (504, "upstream_failed"), pinned.text
        assert "fell silent" in pinned.json()["error"]["message"]
        elsewhere = ask(deployment, stream=True)
        assert (elsewhere.status_code, elsewhere.headers["x-edge-region"]) == (200, "far")
        freeze(deployment.far)
        for stream in (False, True):  # the first finds it out; the second finds both known to be silent
            lost = ask(deployment, stream=stream)
            assert (lost.status_code, lost.headers["retry-after"]) == (504, "1"), lost.text
        wait_until(lambda: {line["node"] for line in told(deployment)} == {"near-1", "far-1"}, 10, deployment)
        assert all(line["in_flight"] == 1 and "no answer to" in line["trouble"] for line in told(deployment))
        assert silences(deployment, "near-1", "near") >= 1
        assert silences(deployment, "far-1", "far") >= 1
    wait_until(lambda: both_ready(deployment), 60, deployment)
    assert ask(deployment, region="near").status_code == 200
