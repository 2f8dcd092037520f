"""vLLM's own server as a node. Skipped unless VLLM names its program and VLLM_MODEL a folder of SmolLM2-135M-Instruct.

VLLM=.../bin/vllm VLLM_MODEL=.../SmolLM2-135M-Instruct pytest tests/e2e/test_vllm.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.deployment import free_ports
from tests.e2e.foreign import probed_asked_and_refused, running

SERVER, MODEL = os.environ.get("VLLM"), os.environ.get("VLLM_MODEL")
CONTEXT = 2048
ON_CPU = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
pytestmark = [
    pytest.mark.xdist_group("e2e"),
    pytest.mark.skipif(SERVER is None or MODEL is None, reason="no program in VLLM, or no model in VLLM_MODEL"),
]


async def test_a_real_server_is_probed_asked_and_refuses_in_openai_shape(tmp_path: Path) -> None:
    assert SERVER is not None and MODEL is not None
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [SERVER, "serve", MODEL, "--port", str(port), "--dtype", "bfloat16", "--max-model-len", str(CONTEXT)]
    command += ["--max-num-seqs", "8", "--enable-prompt-tokens-details", "--served-model-name", "theirs"]
    with running(command, url, 600, ON_CPU):
        whole, streamed, _ = await probed_asked_and_refused(tmp_path, "vllm", url, "theirs", CONTEXT)
    assert streamed["first_token_s"] > 0
    assert whole["prompt_tokens"] == streamed["prompt_tokens"] > 0
