"""KV blocks go out of an executor and into another, which then answers as the first would have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.executor.base import Executor
from engine.executor.reference import ReferenceExecutor
from engine.step import Row
from tests.engine.executor.driver import GREEDY, Driver, blocks_for

pytest.importorskip("engine._native", reason="the native executor is not built")

from tests.engine.executor.native_models import make_native, write_shape

Make = Callable[[Path], Executor]
PROMPT = [(7 * i + 3) % 100 for i in range(40)]
MAKERS: list[Make] = [
    lambda path: make_native(path, blocks=8),
    lambda path: make_native(path, blocks=8, arithmetic="int8", kv_dtype="int8"),
    lambda path: ReferenceExecutor(path, slots=8, blocks=8, context=128),
]


@pytest.fixture(params=MAKERS, ids=["native", "native int8", "reference"])
def make(request: pytest.FixtureRequest) -> Make:
    maker: Make = request.param
    return maker


def test_a_block_moved_to_another_executor_is_read_as_if_computed_there(make: Make, tiny_path: Path) -> None:
    first, other = Driver(make(tiny_path)), Driver(make(tiny_path))
    first.prefill(PROMPT, blocks=(0, 1, 2), chunk=32)
    for block, place in ((0, 5), (1, 3)):
        content = first.executor.read_block(block)
        assert len(content) == first.executor.block_bytes
        other.executor.write_block(place, memoryview(content))
        assert other.executor.read_block(place) == content
    other.step(Row(0, 32, tuple(PROMPT[32:]), (5, 3, 0), True, GREEDY))
    assert other.logits().tobytes() == first.logits().tobytes()
    first.executor.close()
    other.executor.close()


def test_a_block_outside_the_pool_and_one_of_another_size_are_refused(make: Make, tiny_path: Path) -> None:
    executor = make(tiny_path)
    with pytest.raises(ValueError, match="block 8 is outside the pool of 8"):
        executor.read_block(8)
    with pytest.raises(ValueError, match="block 8 is outside the pool of 8"):
        executor.write_block(8, bytes(executor.block_bytes))
    with pytest.raises(ValueError, match=f"a block has {executor.block_bytes} bytes, not 3"):
        executor.write_block(0, b"abc")
    executor.close()


def resident_bytes() -> int:
    """proc_pid_statm(5)"""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_released_is_the_systems_again_and_the_next_step_is_as_the_first(tmp_path: Path) -> None:
    executor = make_native(write_shape(tmp_path, "wide heads"), blocks=4096, context=8192, step_tokens=256)
    pool = executor.limits.blocks * executor.block_bytes
    assert pool >= 40 << 20
    driver = Driver(executor)
    prompt = [token % 64 for token in PROMPT]
    before = driver.generate(prompt, 20, blocks=blocks_for(60))
    logits = driver.logits().tobytes()
    content = executor.read_block(0)
    for block in range(executor.limits.blocks):
        executor.write_block(block, content)
    full = resident_bytes()
    executor.release()
    assert full - resident_bytes() > 0.95 * pool
    with pytest.raises(ValueError, match="slot 0 has sampled nothing yet"):
        executor.logits(0)
    assert executor.read_block(0) == bytes(executor.block_bytes)
    assert driver.generate(prompt, 20, blocks=blocks_for(60)) == before
    assert driver.logits().tobytes() == logits
    executor.release()
    executor.release()
    driver.submit(Row(0, 0, tuple(prompt), blocks_for(60), True, GREEDY))
    with pytest.raises(RuntimeError, match="only while no plan is submitted"):
        executor.release()
    executor.collect()
    executor.close()
