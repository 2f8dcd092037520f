from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine.gpu.monitor import Monitor, open_monitor
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.gpu.fake_nvml import WHOLE, Device, FakeNvml
from tests.engine.serving import Call, chat_call, executor, serving, until


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(Device())


@pytest.fixture
def monitor(nvml: FakeNvml) -> Iterator[Monitor]:
    monitor = open_monitor(environ={}, module=nvml)
    yield monitor
    monitor.close()


async def test_a_node_says_what_it_knows_of_its_gpu_and_why_it_drains(
    tokenizer: Tokenizer, chat_template: ChatTemplate, nvml: FakeNvml, monitor: Monitor
) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        served.node.attach(served.engine, served.chat, monitor)
        served.node.ready()
        monitor.start(lambda: 0.0, lambda: None, served.engine.now)
        assert (await Call(served.app, "GET", "/readyz").done()).status == 200
        nvml.events.put((0x8, 79, WHOLE))
        await until(lambda: monitor.fault is not None)
        served.node.drain()
        ready = await Call(served.app, "GET", "/readyz").done()
        chat = await chat_call(served.app).done()
        status = (await Call(served.app, "GET", "/node/v1/status").done()).json()
        metrics = (await Call(served.app, "GET", "/metrics").done()).body.decode()
    assert (ready.status, ready.json()["error"]["code"]) == (503, "node_draining")
    assert "because of a fault of GPU 0 (NVIDIA H100 80GB HBM3): Xid 79" in ready.json()["error"]["message"]
    assert chat.status == 503
    assert "Xid" not in chat.body.decode(), "clients are told nothing of the hardware"
    assert status["state"] == "draining"
    assert status["gpu"]["fault"].startswith("GPU 0 (NVIDIA H100")
    assert status["gpu"]["events"] == {"xid": 1}
    assert status["susi"] is None
    assert "engine_gpu_fault 1.0" in metrics


async def test_a_node_on_the_cpu_says_nothing_of_a_gpu(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    async with serving(executor(tokenizer), tokenizer, chat_template) as served:
        status = (await Call(served.app, "GET", "/node/v1/status").done()).json()
        served.node.drain()
        ready = await Call(served.app, "GET", "/readyz").done()
    assert status["gpu"] is None
    assert ready.json()["error"]["message"] == "This node is draining."
