"""llama.cpp's own server as a node. Skipped where there is none: have `llama-server` on PATH or in LLAMA_SERVER."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from engine.model.source import resolve
from tests.e2e.deployment import SOURCE, free_ports
from tests.e2e.foreign import probed_asked_and_refused, running

SERVER = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
CONTEXT = 2048
pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(SERVER is None, reason="no llama-server on PATH or in LLAMA_SERVER"),
]


async def test_a_real_server_is_probed_asked_timed_and_refuses_in_openai_shape(tmp_path: Path) -> None:
    assert SERVER is not None
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [SERVER, "--model", str(resolve(SOURCE)), "--port", str(port), "--metrics", "--ctx-size", str(CONTEXT)]
    command += ["--parallel", "1", "--threads", "2", "--no-webui"]
    with running(command, url, 60, {"LD_LIBRARY_PATH": str(Path(SERVER).parent)}):
        first, second, _ = await probed_asked_and_refused(tmp_path, "llamacpp", url, "SmolLM2", CONTEXT)
    assert first["prefill_s"] > 0, "from its timings"
    assert first["first_token_s"] > 0
    assert second["cached_tokens"] > 0, "the same prompt again"
