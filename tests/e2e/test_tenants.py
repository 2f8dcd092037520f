"""Two tenants on one node: what one has computed, the other does not find."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from edgeproxy.access.keys import add_key
from tests.e2e import deployment as deployments
from tests.e2e.deployment import MODEL, Deployment

pytest.importorskip("engine._native", reason="the native executor is not built")

pytestmark = pytest.mark.xdist_group("e2e")
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8


def cached(deployment: Deployment, key: str) -> int:
    body = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}
    answer = httpx.post(
        f"{deployment.base_url}/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}, timeout=60
    )
    found: int = answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_tenants_find_their_own_prefixes_and_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    acme, acme_too, other = (
        add_key(path, tenant, disclose=False, admin=False, regions=["near"]) for tenant in ("acme", "acme", "other")
    )
    started = deployments.start(tmp_path, more=f"keys: {path}")
    try:
        found = [cached(started, key) for key in (acme, acme_too, other, other)]
    finally:
        deployments.stop(started)
    assert found[0] == found[2] == 0
    assert found[1] == found[3] > 64
