"""openai-node and the Vercel AI SDK's openai-compatible provider, on Node."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.deployment import MODEL, Deployment

FOLDER = Path(__file__).parent / "node"
MISSING = not (FOLDER / "node_modules").exists() or shutil.which("node") is None
pytestmark = [
    pytest.mark.long,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(MISSING, reason="not installed: scripts/conformance installs and runs it"),
]


@pytest.mark.parametrize("script", ["openai.mjs", "ai.mjs"])
def test_on_node(deployment: Deployment, script: str) -> None:
    """Each script asserts what its library shows, and says ok."""
    done = subprocess.run(
        ["node", script, deployment.base_url, MODEL], cwd=FOLDER, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr
