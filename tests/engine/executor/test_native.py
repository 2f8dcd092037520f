"""The executor's contract, bit for bit, on tiny models of several shapes."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine.executor.base import Limits
from engine.executor.native import NativeExecutor
from engine.model.gguf import read
from engine.step import Finish, Row, RowResult, Sampling, StepPlan
from tests.engine.executor.driver import GREEDY, Driver, blocks_for
from tests.engine.executor.exact import exact_logits
from tests.engine.executor.native_models import ARITHMETICS, ISAS, SHAPES, TINY, make_native, write_shape
from tests.engine.gguf_files import write_llama

PROMPT = [int(token) for token in np.random.default_rng(2).integers(0, 33, 150)]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=0xDEADBEEF12345678)
SCATTERED = (13, 2, 30, 7, 127, 64, 1, 99, 3, 42, 55, 4)
LONG_ENOUGH_TO_CROSS_TILES = (1, 15, 16, 17, 63, 64, 65, 128, 129)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


Make = Callable[..., NativeExecutor]


@pytest.fixture(params=[*((name, "f16") for name in ARITHMETICS), ("float32", "int8")], ids="-".join)
def make(request: pytest.FixtureRequest) -> Make:
    """Builds an executor over the file itself, or over an image packed from it; with KV of 8 bits, too."""
    arithmetic, kv_dtype = request.param
    return partial(make_native, arithmetic=arithmetic, kv_dtype=kv_dtype)


@pytest.fixture
def executor(make: Make, tiny_path: Path) -> Iterator[NativeExecutor]:
    executor = make(tiny_path)
    yield executor
    executor.close()


@pytest.fixture
def drive(executor: NativeExecutor) -> Driver:
    return Driver(executor)


@pytest.mark.parametrize("dtype", ["F32", "F16", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_those_of_exact_arithmetic(tmp_path: Path, shape: str, dtype: str, isa: str) -> None:
    path = write_shape(tmp_path, shape, dtype)
    drive = Driver(make_native(path, isa=isa))
    exact = exact_logits(path, PROMPT)
    for length in (1, 16, 70, 150):
        drive.prefill(PROMPT[:length], blocks=SCATTERED)
        expected = exact[length - 1]
        assert np.abs(drive.logits() - expected).max() < 2e-4 * np.abs(expected).max()
    drive.executor.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_over_kv_of_eight_bits_are_those_of_exact_arithmetic_that_rounds_there(
    tmp_path: Path, shape: str, isa: str
) -> None:
    """But for values at the edge of two levels, which a last bit of float32 decides: few, and of small effect."""
    path = write_shape(tmp_path, shape, "F32")
    drive = Driver(make_native(path, isa=isa, kv_dtype="int8"))
    exact = exact_logits(path, PROMPT, int8_kv=True)
    coarse = exact_logits(path, PROMPT)
    for length in (1, 16, 70, 150):
        drive.prefill(PROMPT[:length], blocks=SCATTERED)
        off = np.abs(drive.logits() - exact[length - 1]).max()
        assert off < 5e-3 * np.abs(exact[length - 1]).max()
        if length > 1:  # one token attends to itself alone: its keys do not matter
            assert off < np.abs(drive.logits() - coarse[length - 1]).max()
    drive.executor.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_chunked_equals_whole_and_decode_equals_prefill(make: Make, tmp_path: Path, shape: str, isa: str) -> None:
    drive = Driver(make(write_shape(tmp_path, shape), isa=isa))
    for length in LONG_ENOUGH_TO_CROSS_TILES:
        drive.prefill(PROMPT[:length], blocks=SCATTERED)
        whole = drive.logits()
        for chunk in {1, 7, 16, 33, 64}:
            drive.prefill(PROMPT[:length], blocks=blocks_for(length), slot=1, chunk=chunk)
            np.testing.assert_array_equal(drive.logits(1), whole)
    sampled = drive.generate(PROMPT[:60], 12, blocks=SCATTERED)
    decoded = drive.logits()
    drive.prefill(PROMPT[:60] + sampled[:-1], blocks=blocks_for(80, 70), slot=1)
    np.testing.assert_array_equal(drive.logits(1), decoded)
    drive.executor.close()


def test_alone_equals_batched(make: Make, tmp_path: Path, isa: str) -> None:
    """Prefill of several lengths, beside decode rows, with rows that come and go."""
    drive = Driver(make(write_shape(tmp_path, "three heads a group"), isa=isa))
    alone = {}
    for slot, length in enumerate((3, 40, 65, 90)):
        drive.generate(PROMPT[slot : slot + length], 5, blocks=blocks_for(length + 5), slot=slot, sampling=SAMPLED)
        alone[slot] = drive.logits(slot)
    tables = {slot: blocks_for(100, slot * 7) for slot in alone}
    lengths = dict(enumerate((3, 40, 65, 90)))
    for started in range(len(alone)):  # one joins at each step
        drive.step(*_rows(started, lengths, tables))
    for step in range(4):
        drive.step(
            *(Row(s, lengths[s] + 3 - s + step, (), tables[s], True) for s in reversed(range(4)) if step < s + 1)
        )
    for slot, logits in alone.items():
        np.testing.assert_array_equal(drive.logits(slot), logits)
    drive.executor.close()


def _rows(joining: int, lengths: dict[int, int], tables: dict[int, tuple[int, ...]]) -> list[Row]:
    """Slot `joining` runs its prompt while those before it decode."""
    prompt = tuple(PROMPT[joining : joining + lengths[joining]])
    rows = [Row(joining, 0, prompt, tables[joining], True, SAMPLED)]
    return [Row(s, lengths[s] + joining - s - 1, (), tables[s], True) for s in range(joining)] + rows


def test_a_reused_prefix_equals_a_computed_one(drive: Driver) -> None:
    drive.prefill(PROMPT[:128], blocks=SCATTERED)
    drive.prefill(PROMPT, blocks=blocks_for(150, 70), slot=1)
    for start in (16, 64, 112, 128):
        table = SCATTERED[: start // 16] + tuple(range(100, 110))
        drive.step(Row(2, start, tuple(PROMPT[start:]), table, True, GREEDY))
        np.testing.assert_array_equal(drive.logits(2), drive.logits(1))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(make: Make, tmp_path: Path, threads: int) -> None:
    path = write_shape(tmp_path, "three heads a group")
    found = []
    for count in (1, threads):
        drive = Driver(make(path, threads=count))
        tokens = drive.generate(PROMPT, 20, blocks=SCATTERED, sampling=SAMPLED)
        found.append((tokens, drive.logits().tolist()))
        drive.executor.close()
    assert found[0] == found[1]


def test_what_lies_in_unwritten_kv_does_not_matter(make: Make, tmp_path: Path) -> None:
    """Blocks full of infinities and NaN from a broken sequence are reused by a sound one."""
    path = _with_broken_token(write_llama(tmp_path / "broken.gguf"), token=9)
    drive = Driver(make(path, blocks=8))
    prompt = [token for token in PROMPT[:40] if token != 9]
    drive.prefill(prompt, blocks=blocks_for(40))
    expected = drive.logits()
    broken = drive.step(Row(1, 0, (9,) * 128, tuple(range(8)), True, GREEDY))[0]
    assert broken.finish == Finish.ERROR
    for chunk in (len(prompt), 5, 1):
        drive.prefill(prompt, blocks=(7, 5, 3), chunk=chunk)
        np.testing.assert_array_equal(drive.logits(), expected)
    drive.executor.close()


def test_logits_that_are_not_finite_end_one_sequence_only(make: Make, tmp_path: Path) -> None:
    path = _with_broken_token(write_llama(tmp_path / "broken.gguf"), token=9)
    drive = Driver(make(path))
    alone = drive.prefill([1, 2, 3], blocks=(9,))
    expected = drive.logits()
    broken, sound = drive.step(Row(1, 0, (5, 9, 6), (0,), True, GREEDY), Row(2, 0, (1, 2, 3), (1,), True, GREEDY))
    assert (broken.tokens, broken.finish) == ((), Finish.ERROR)
    assert (sound.tokens, sound.finish) == (alone, None)
    np.testing.assert_array_equal(drive.logits(2), expected)
    assert drive.step(Row(1, 3, (), (0,), True)) == (RowResult(1),)
    assert drive.step(Row(1, 3, (4,), (0,), True)) == (RowResult(1),)
    assert drive.step(Row(1, 0, (1, 2, 3), (0,), True, GREEDY))[0].tokens == alone
    drive.executor.close()


def _with_broken_token(path: Path, token: int) -> Path:
    """The same file with an infinite scale in the first block of a token's embedding row (Q8_0)."""
    tensor = read(path).tensors["token_embd.weight"]
    data = bytearray(path.read_bytes())
    at = tensor.offset + token * tensor.nbytes // tensor.shape[0]
    data[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(data)
    return path


def test_two_plans_may_be_out_and_decode_takes_the_uncollected_token(drive: Driver, executor: NativeExecutor) -> None:
    expected = drive.generate(PROMPT, 4, blocks=SCATTERED, sampling=SAMPLED)
    drive.submit(Row(1, 0, tuple(PROMPT), blocks_for(154, 50), True, SAMPLED))
    found: list[int] = []
    ended = 0.0
    for position in range(len(PROMPT), len(PROMPT) + 3):
        drive.submit(Row(1, position, (), blocks_for(154, 50), True))
        with pytest.raises(RuntimeError, match="2 plans are submitted"):
            drive.submit(Row(1, position, (), blocks_for(154, 50), True))
        with pytest.raises(RuntimeError, match="only while no plan is submitted"):
            executor.logits(1)
        result = executor.collect()
        found += result.rows[0].tokens
        assert ended <= result.started <= result.ended <= time.monotonic()
        ended = result.ended
    found += executor.collect().rows[0].tokens
    assert found == expected
    with pytest.raises(RuntimeError, match="nothing to collect"):
        executor.collect()


def test_results_name_the_step_and_keep_the_order_of_rows(executor: NativeExecutor) -> None:
    rows = tuple(Row(slot, 0, (slot, 1), (slot,), slot % 2 == 0, GREEDY) for slot in (5, 2, 7, 0))
    executor.submit(StepPlan(1 << 40, rows))
    result = executor.collect()
    assert result.step == 1 << 40
    assert [(row.slot, len(row.tokens)) for row in result.rows] == [(5, 0), (2, 1), (7, 0), (0, 1)]
    executor.submit(StepPlan(9, ()))
    assert executor.collect().rows == ()


def test_a_stop_token_ends_the_slot_and_decode_rows_after_it_do_nothing(
    drive: Driver, executor: NativeExecutor
) -> None:
    tokens = drive.generate(PROMPT, 6, blocks=SCATTERED, sampling=SAMPLED)
    stop = next(token for token in tokens if tokens.index(token) > 1)
    last = tokens.index(stop)
    opens = replace(SAMPLED, stop_ids=(127, stop))
    drive.submit(Row(0, 0, tuple(PROMPT), SCATTERED, True, opens))
    found = []
    for step in range(last + 3):
        drive.submit(Row(0, len(PROMPT) + step, (), SCATTERED, True))
        found.append(executor.collect().rows[0])
    found.append(executor.collect().rows[0])
    assert [row.tokens for row in found] == [(token,) for token in tokens[: last + 1]] + [()] * 3
    assert [row.finish for row in found] == [None] * last + [Finish.STOP] + [None] * 3


def test_a_slot_opened_again_forgets_what_it_was(drive: Driver) -> None:
    greedy = drive.prefill(PROMPT, blocks=SCATTERED)
    drive.generate(PROMPT[5:40], 9, blocks=blocks_for(60, 70), sampling=replace(SAMPLED, stop_ids=tuple(range(64))))
    assert drive.prefill(PROMPT, blocks=blocks_for(150)) == greedy


def test_seeded_sampling_is_the_same_in_another_slot_and_after_a_move(drive: Driver) -> None:
    expected = drive.generate(PROMPT, 24, blocks=SCATTERED, sampling=SAMPLED)
    assert drive.generate(PROMPT, 24, blocks=blocks_for(180, 60), slot=5, sampling=SAMPLED) == expected
    assert drive.generate(PROMPT, 24, blocks=SCATTERED, sampling=replace(SAMPLED, seed=1)) != expected
    assert drive.prefill(PROMPT + expected[:10], blocks=SCATTERED, slot=6, sampling=SAMPLED) == (expected[10],)


def test_limits_and_numerics_say_what_it_was_built_for(tiny_path: Path, tmp_path: Path, isa: str) -> None:
    executor = make_native(tiny_path, isa=isa)
    assert executor.limits == Limits(slots=8, blocks=128, step_tokens=256, context=512, vocab=TINY.vocab)
    assert executor.depth == 2
    assert make_native(tiny_path, isa=isa, threads=1, blocks=9).numerics == executor.numerics
    assert isa in executor.numerics
    assert make_native(tiny_path, isa=isa, kv_dtype="int8").numerics != executor.numerics
    assert make_native(write_llama(tmp_path / "other.gguf", dtype="F32"), isa=isa).numerics != executor.numerics


def test_collect_lets_other_python_threads_run(tmp_path: Path) -> None:
    executor = make_native(write_shape(tmp_path, "wide heads"), threads=1)
    collecting, done = threading.Event(), threading.Event()

    def engine() -> None:
        collecting.set()
        executor.collect()
        done.set()

    waiter = threading.Thread(target=engine)
    executor.submit(StepPlan(1, (Row(0, 0, tuple(PROMPT), blocks_for(150), True, GREEDY),)))
    waiter.start()
    assert collecting.wait(10)
    assert done.wait(10)
    waiter.join()


def test_an_idle_executor_uses_no_cpu(drive: Driver) -> None:
    drive.prefill(PROMPT, blocks=SCATTERED)
    threads = [int(task) for task in os.listdir("/proc/self/task")]  # noqa: PTH208

    def used() -> int:
        found = 0
        for task in threads:
            try:
                fields = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
            except FileNotFoundError:
                continue
            found += int(fields[0]) if task != threading.get_native_id() else 0
        return found

    deadline = time.monotonic() + 10
    before = used()
    while time.monotonic() < deadline:
        time.sleep(0.05)
        after = used()
        if after == before:
            return
        before = after
    pytest.fail("the executor's threads still run")


def test_close_waits_ends_the_threads_and_may_be_repeated(tiny_path: Path) -> None:
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    executor = make_native(tiny_path, threads=4)
    assert len(os.listdir("/proc/self/task")) == before + 4 + 1  # noqa: PTH208
    executor.submit(StepPlan(1, (Row(0, 0, tuple(PROMPT), blocks_for(150), True, GREEDY),)))
    executor.close()
    executor.close()
    assert len(os.listdir("/proc/self/task")) == before  # noqa: PTH208
    for call in (executor.collect, lambda: executor.submit(StepPlan(2, ())), lambda: executor.logits(0)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_dropped_executor_ends_its_threads(tiny_path: Path) -> None:
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    executor = make_native(tiny_path, threads=3)
    executor.submit(StepPlan(1, (Row(0, 0, tuple(PROMPT), blocks_for(150), True, GREEDY),)))
    del executor
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == before  # noqa: PTH208


def test_workers_tell_the_time_that_each_has_computed(tiny_path: Path) -> None:
    executor = make_native(tiny_path, threads=2)
    drive = Driver(executor)
    before = executor.worker_seconds()
    assert len(before) == 2
    while min(now - then for now, then in zip(executor.worker_seconds(), before, strict=True)) < 0.001:
        drive.prefill(PROMPT, blocks=blocks_for(150))
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        executor.worker_seconds()


def test_page_faults_are_those_of_its_own_threads(tiny_path: Path) -> None:
    pages = 4096  # more than the executor has of its own
    executor = make_native(tiny_path, threads=2)
    drive = Driver(executor)
    drive.prefill(PROMPT, blocks=blocks_for(150))
    before = executor.page_faults()
    mine = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory[:: mmap.PAGESIZE] = bytes(pages)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt >= mine + pages
    assert before <= executor.page_faults() < before + pages
    before = executor.page_faults()
    executor.release()
    drive.prefill(PROMPT, blocks=blocks_for(150))
    assert executor.page_faults() > before
    executor.close()
