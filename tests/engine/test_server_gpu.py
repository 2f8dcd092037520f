"""`engine serve --device cuda` from the outside, as far as a machine without a GPU lets it: NVML is one that was
written down, the device is the CPU with its kernels interpreted, and all between them is what a GPU's node runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from engine.cli import main
from tests.engine.gguf_files import TINY, write_llama
from tests.engine.gpu.fake_nvml import GIB, Device, FakeNvml
from tests.engine.serving import MODEL

pytest.importorskip("triton", reason="triton is not installed: scripts/install --dev")

PROGRAM = """
import json, sys, threading
from engine.executor.gpu import device
from engine.gpu import driver
from engine import rehearsal
from engine.node import Node
from tests.engine.executor.gpu.cuda_models import TINY_TILES
from tests.engine.executor.gpu.interpreter import quicken
from tests.engine.executor.gpu.stand_in import Recorder
from tests.engine.gpu.fake_nvml import WHOLE, Device, FakeNvml

quicken()
told = []

class Nvml(FakeNvml):
    def nvmlDeviceGetMemoryInfo(self, device):
        told.append("memory")
        return super().nvmlDeviceGetMemoryInfo(device)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, device):
        told.append("link")
        return super().nvmlDeviceGetCurrPcieLinkGeneration(device)

class Told(Recorder):
    def __init__(self):
        super().__init__(TINY_TILES)
        told.append("device")

    def capture(self, work):
        told.append("captured")
        return super().capture(work)

def tell(owner, name, what):
    does = getattr(owner, name)
    def told_and_done(self):
        told.append(what)
        return does(self)
    setattr(owner, name, told_and_done)

nvml = sys.modules["pynvml"] = Nvml(Device(links=[(1, 16), (4, 16)]))
device.CudaDevice = Told
driver.problem = lambda: None
rehearsal.ROUNDS = rehearsal.TOKENS = 2
tell(rehearsal.Rehearsal, "_round", "round")
tell(Node, "ready", "ready")

def wait():
    sys.stdin.readline()
    print(json.dumps(told), flush=True)
    sys.stdin.readline()
    nvml.events.put((0x8, 79, WHOLE))

threading.Thread(target=wait, daemon=True).start()
from engine.cli import main
main()
"""
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    shape = replace(TINY, layers=1, hidden=32, heads=2, kv_heads=1)
    model = write_llama(tmp_path / "tiny.gguf", shape, text=True)
    sizes = ["--slots", "1", "--step-tokens", "16", "--kv-tokens", "32", "--gpu-dtype", "f16"]
    start = ["serve", "--model", str(model), "--model-id", MODEL, "--port", "0", "--device", "cuda"]
    return [*start, *sizes, "--cache", str(tmp_path / "cache")]


@contextmanager
def served(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def test_memory_is_asked_for_then_graphs_captured_then_requests_rehearsed_then_it_is_ready_until_a_fault(
    arguments: list[str],
) -> None:
    with served(arguments) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        url = child.stdout.readline().split()[-1]
        assert (ready := child.stdout.readline()).startswith("ready"), child.stderr.read()
        assert re.search(r"rehearsal \d+ ms \(kernels \d+ ms, graphs \d+ ms, weights \d+ ms\)$", ready)
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 3
        gpu = httpx.get(f"{url}/node/v1/status").json()["gpu"]
        assert (gpu["watch"], gpu["link"]) == ("watched", {"generation": 4, "width": 16})
        child.stdin.write("\n")
        child.stdin.flush()
        order = [what for what, _ in groupby(json.loads(child.stdout.readline()))]
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.wait(60) == 1
        told = child.stderr.read()
    assert "PCIe generation 4 x16 under load where generation 5 x16 is possible" in told
    assert "draining: GPU 0 (NVIDIA H100 80GB HBM3): Xid 79: it has fallen off the bus" in told
    assert order.index("memory") < order.index("device") < order.index("captured")
    before = order[: order.index("ready")]
    assert before.index("round") > max(at for at, what in enumerate(before) if what in ("captured", "link"))


def test_a_node_that_does_not_fit_is_refused_before_the_device_is_touched(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeNvml(Device(processes={7: 76 * GIB}), Device(uuid="GPU-2"), programs={7: "train"})
    monkeypatch.setitem(sys.modules, "pynvml", fake)

    def touched(*_: object) -> None:
        raise AssertionError("the device was touched")

    monkeypatch.setattr("torch.cuda.is_available", touched)
    monkeypatch.setattr("engine.gpu.driver.problem", lambda: None)
    result = CliRunner().invoke(main, [*arguments, "--kv-tokens", "64000000"])
    assert result.exit_code == 1
    for part in (
        "this node needs", "sorting", "process 7 (train) holds 77,824 MiB",
        "(1) a smaller KV pool", "(2) end process 7", "(3) use GPU 1 (NVIDIA H100 80GB HBM3)", "=GPU-2",
    ):  # fmt: skip
        assert part in result.output
    assert fake.open == [], "and NVML is given back"


def test_a_device_that_wants_a_reset_is_refused_as_well(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.gpu.driver.problem", lambda: None)
    fake = FakeNvml(Device(action=1))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "cannot be used: the driver asks for a reset of the device" in result.output
    assert fake.open == []
