"""A running proxy takes another regions.yaml at SIGHUP, and keeps to the old one where the new one is broken."""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import pytest

from tests.e2e.deployment import MODEL, Deployment, nodes, wait_until

pytestmark = pytest.mark.xdist_group("e2e")


def configuration(deployment: Deployment) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{deployment.admin}/admin/status").json()["configuration"]
    return found


def test_a_region_goes_with_its_children_and_a_broken_file_changes_nothing(own_deployment: Deployment) -> None:
    deployment = own_deployment
    file = deployment.state.parent / "regions.yaml"
    whole = file.read_text()
    question = {"role": "user", "content": "Tell me a long story."}
    body = {"model": MODEL, "messages": [question], "max_tokens": 64, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{deployment.base_url}/chat/completions", json=body, timeout=60) as answer:
        said = answer.iter_lines()
        next(said)
        file.write_text(whole[: whole.index("  far:")])
        deployment.process.send_signal(signal.SIGHUP)
        wait_until(lambda: set(nodes(deployment)) == {"near-1"}, 20, deployment)
        assert "data: [DONE]" in list(said), "the stream that was under way"
    wait_until(lambda: not deployment.children(f"--port {deployment.far}"), 20, deployment)
    assert not deployment.children("edgeproxy.sim.relay")
    file.write_text("regions: [")
    wait_until(lambda: configuration(deployment)["error"] is not None, 20, deployment)
    assert set(nodes(deployment)) == {"near-1"}
    file.write_text(whole)
    os.kill(deployment.process.pid, signal.SIGHUP)
    wait_until(lambda: len(nodes(deployment)) == 2 and nodes(deployment)["far-1"]["ready"], 60, deployment)
    assert configuration(deployment)["error"] is None
