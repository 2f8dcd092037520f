"""What the executor promises of the device's time and memory, shown on devices that watch it (stand_in.py)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from engine.executor import upload_torch
from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import ASKED, Device, asked, uncollected
from engine.executor.upload import Span, Uploader
from engine.executor.upload_torch import TorchTransport
from engine.step import Row, Sampling, StepPlan
from tests.engine.executor.driver import GREEDY, Driver
from tests.engine.executor.gpu.cuda_models import TINY_TILES, make_cuda
from tests.engine.executor.gpu.stand_in import LateDevice, Operations, Recorder
from tests.engine.gguf_files import TINY, write_llama

SHAPE = replace(TINY, layers=1, hidden=32, heads=2, kv_heads=1, context=64)
SMALL: dict[str, Any] = {"step_tokens": 4, "slots": 2, "blocks": 10, "context": 64}
PATIENCE_S = 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("order") / "tiny.gguf", SHAPE)


def make(path: Path, device: Device) -> CudaExecutor:
    return make_cuda(path, device=device, **SMALL)


class Gated(TorchTransport):
    """Sends nothing until it is let."""

    def __init__(self, source: Tensor, target: Tensor, layers: int) -> None:
        super().__init__(source, target, layers, slots=1, slot_bytes=1 << 20)
        self.gate = threading.Event()
        self.sent: list[Span] = []

    def stage(self, slot: int, piece: Span) -> None:
        assert self.gate.wait(PATIENCE_S)
        super().stage(slot, piece)

    def send(self, slot: int, piece: Span) -> None:
        self.sent.append(piece)
        super().send(slot, piece)


class Following(Uploader):
    """Tells the device's record which layer is waited for."""

    told: list[str]

    def wait(self, layer: int) -> None:
        super().wait(layer)
        self.told.append(f"layer {layer}")


def test_all_is_captured_before_a_weight_has_come_and_the_first_step_follows_them_layer_by_layer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Recorder(TINY_TILES)
    transports: list[Gated] = []

    def gated(source: Tensor, target: Tensor, layers: Sequence[Span]) -> Uploader:
        transports.append(Gated(source, target, len(layers)))
        upload = Following(transports[0], layers)
        upload.told = device.told
        return upload

    expected = Driver(make_cuda(path, **SMALL))
    monkeypatch.setattr(upload_torch, "uploader", gated)
    executor = make(path, device)
    assert device.told == ["captured"] * len(device.graphs)
    assert device.kept == len(device.graphs) > 0
    assert not transports[0].sent
    transports[0].gate.set()
    prompt = [3, 5, 8]
    assert Driver(executor).generate(prompt, 3, blocks=(1, 2)) == expected.generate(prompt, 3, blocks=(1, 2))
    assert device.told[len(device.graphs) :] == ["layer 0", "layer 1", "layer 2"], "and then no more"
    for one in (executor, expected.executor):
        one.close()


def test_graphs_and_their_memory_go_with_sleep_and_end_and_come_again(path: Path) -> None:
    device = Recorder(TINY_TILES)
    executor = make(path, device)
    made = len(device.graphs)
    first = Driver(executor).prefill([3, 5, 8], blocks=(1,))
    executor.release()
    assert (device.kept, device.told[-1]) == (0, "forgotten")
    assert Driver(executor).prefill([3, 5, 8], blocks=(1,)) == first
    assert (device.kept, len(device.graphs)) == (made, 2 * made)
    executor.close()
    assert (device.kept, device.told[-1]) == (0, "forgotten")


def test_once_it_is_warm_nothing_is_asked_of_torchs_allocator(path: Path) -> None:
    executor = make(path, Recorder(TINY_TILES))
    drive = Driver(executor)
    sampling = Sampling(temperature=0.8, repetition=1.2, constrained=True)
    drive.prefill([3, 5, 8], blocks=(1,))
    with Operations() as operations:
        executor.submit(StepPlan(10, (Row(0, 0, (3, 5, 8), (1, 2), True, sampling, (3, 5, 8)),)))
        executor.submit(StepPlan(11, (Row(0, 3, (), (1, 2), True), Row(1, 0, (4,), (3,), True, GREEDY))))
        executor.allow(0, 10, b"\xff" * 16)
        executor.collect()
        executor.allow(0, 11, None)
        executor.collect()
        executor.write_block(5, executor.read_block(1))
        executor.write_block(6, executor.read_block(5))
    assert operations.seen.count("aten.copy_.default") > 10
    assert operations.allocating == []
    executor.close()


def test_pinned_memory_is_left_alone_while_the_device_may_read_it(path: Path) -> None:
    """Chunks, new blocks, a slot that is opened twice in a row and masks for both, always one step ahead."""
    device = LateDevice(TINY_TILES)
    executor = make(path, device)
    constrained = Sampling(temperature=0.8, repetition=1.2, constrained=True)
    masks = [(1 << (40 + n)).to_bytes(16, "little") for n in range(6)]
    plans = [
        StepPlan(0, (Row(0, 0, (3, 5, 8), (1,), True, constrained, (3, 5, 8)),)),
        StepPlan(1, (Row(0, 0, (9, 2, 7), (2,), True, constrained, (9, 2, 7)),)),
        StepPlan(2, (Row(0, 0, (1, 2), (3,), True, constrained, (1, 2)), Row(1, 0, (4,), (4,), True, GREEDY))),
        StepPlan(3, (Row(0, 2, (), (3, 5), True), Row(1, 1, (6, 6), (4, 6), False))),
        StepPlan(4, (Row(0, 3, (), (3, 5, 7), True), Row(1, 3, (), (4, 6, 0), True))),
    ]
    results = []
    with Operations(device.copied):
        executor.submit(plans[0])
        for plan in plans[1:]:
            executor.submit(plan)
            executor.allow(0, plan.step - 1, masks[plan.step - 1])
            if plan.rows[0].opens is not None:
                executor.allow(0, plan.step, masks[plan.step])
            results.append(executor.collect())
            executor.write_block(9, executor.read_block(8))
        executor.allow(0, 4, masks[4])
        results.append(executor.collect())
    assert [result.rows[0].tokens for result in results] == [(40 + n,) for n in range(5)]
    assert device.landed > 30
    executor.close()


def test_blocks_move_beside_the_steps_which_wait_for_what_was_put_back_alone(path: Path) -> None:
    device = Recorder(TINY_TILES)
    executor = make(path, device)
    Driver(executor).prefill([3, 5, 8], blocks=(1,))
    before = len(device.told)
    content = executor.read_block(1)
    assert device.told[before:] == ["beside"]
    executor.write_block(2, content)
    assert device.told[before:] == ["beside", "beside", "joined"]
    assert executor.read_block(2) == content
    executor.close()


def test_taking_and_giving_back_are_both_counted() -> None:
    """Of torch and of the driver: one call of any kind is one more."""
    statistics = dict.fromkeys(ASKED, 10)
    before = asked(statistics)
    for name in ("allocation.all.freed", "segment.all.freed", "allocation.all.allocated", "segment.all.allocated"):
        changed: dict[str, Any] = statistics | {name: 11}
        assert asked(changed) == before + 1


def test_nothing_is_collected_while_a_graph_is_captured_and_what_was_before_is_again() -> None:
    try:
        for before in (True, False):
            (gc.enable if before else gc.disable)()
            with uncollected():
                assert not gc.isenabled()
            assert gc.isenabled() == before
    finally:
        gc.enable()
