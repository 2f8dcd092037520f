"""The GPU executor keeps the contract, on torch's CPU device with its kernels interpreted: a step takes 0.2 s there, so
that a test takes few."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.constraint import only
from engine.executor.base import Limits
from engine.executor.cuda import CudaExecutor
from engine.executor.reference import ReferenceExecutor
from engine.executor.sampling import logprobs
from engine.step import Finish, Row, RowResult, Sampling, StepPlan
from tests.engine.executor.driver import GREEDY, Driver
from tests.engine.executor.gpu.cuda_models import make_cuda
from tests.engine.gguf_files import TINY, write_llama

SHAPE = replace(TINY, layers=1, hidden=96, heads=6, context=128)
PROMPT = [int(token) for token in np.random.default_rng(2).integers(0, 128, 90)]
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=50, seed=0xDEADBEEF12345678)
SCATTERED = (13, 2, 20, 7, 17, 10)
LONG = pytest.mark.long
MIXES = [
    pytest.param("f32", False, "16", id="f32"),
    pytest.param("f32", True, "16", id="f32 of few bits", marks=LONG),
    pytest.param("f16", True, "fp8", id="f16, 8 bits of KV", marks=LONG),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("cuda") / "tiny.gguf", SHAPE)


@pytest.fixture(scope="module")
def executor(path: Path) -> Iterator[CudaExecutor]:
    executor = make_cuda(path)
    yield executor
    executor.close()


@pytest.fixture
def drive(executor: CudaExecutor) -> Driver:
    return Driver(executor)


@pytest.mark.parametrize("kept", [pytest.param(False, id="dense", marks=LONG), pytest.param(True, id="kept")])
def test_tokens_are_the_oracles(path: Path, kept: bool) -> None:
    """In float32 on both sides: in few bits a matrix has the very values that the oracle takes from the file."""
    drive = Driver(make_cuda(path, kept=kept))
    oracle = Driver(ReferenceExecutor(path, slots=8, blocks=24))
    for slot, sampling in ((0, GREEDY), (1, SAMPLED)):
        found, expected = (
            one.generate(PROMPT[:20], 2, blocks=SCATTERED, slot=slot, sampling=sampling) for one in (drive, oracle)
        )
        assert found == expected
        np.testing.assert_allclose(drive.logits(slot), oracle.logits(slot), atol=1e-5)
    drive.executor.close()


@pytest.mark.parametrize(("dtype", "kept", "kv"), MIXES)
def test_alone_equals_batched_chunked_equals_whole_and_hit_equals_miss(
    path: Path, dtype: str, kept: bool, kv: str
) -> None:
    drive = Driver(make_cuda(path, dtype, kept=kept, kv_dtype=kv))
    whole = drive.prefill(PROMPT[:80], blocks=SCATTERED, sampling=SAMPLED)
    expected = drive.logits()
    second = drive.step(Row(0, 80, (), SCATTERED, True))[0].tokens
    decoded = drive.logits()

    drive.step(Row(1, 0, tuple(PROMPT[:16]), (0, 1, 3, 4, 5, 6), False, SAMPLED))
    beside = Row(2, 0, tuple(PROMPT[5:25]), (8, 9, 11), True, GREEDY)
    drive.step(Row(1, 16, tuple(PROMPT[16:67]), (0, 1, 3, 4, 5, 6), False), beside)
    last = Row(1, 67, tuple(PROMPT[67:80]), (0, 1, 3, 4, 5, 6), True)
    hit = Row(3, 64, tuple(PROMPT[64:80]), (*SCATTERED[:4], 12, 14), True, SAMPLED)
    _, chunked, reused = drive.step(Row(2, 20, (), (8, 9, 11), True), last, hit)
    assert chunked.tokens == reused.tokens == whole
    np.testing.assert_array_equal(drive.logits(1), expected)
    np.testing.assert_array_equal(drive.logits(3), expected)
    rows = drive.step(Row(3, 80, (), (*SCATTERED[:4], 12, 14), True), Row(1, 80, (), (0, 1, 3, 4, 5, 6), True))
    assert [row.tokens for row in rows] == [second, second]
    np.testing.assert_array_equal(drive.logits(3), decoded)
    np.testing.assert_array_equal(drive.logits(1), decoded)
    drive.executor.close()


def test_samples_wait_for_their_masks_and_forwards_do_not(drive: Driver, executor: CudaExecutor) -> None:
    constrained = replace(SAMPLED, constrained=True, first=5)
    rows = (Row(0, 0, tuple(PROMPT[:5]), (0,), True, constrained), Row(1, 0, tuple(PROMPT[:5]), (1,), True, GREEDY))
    executor.submit(StepPlan(100, rows))
    executor.submit(StepPlan(101, (Row(0, 5, (), (0,), True), Row(1, 5, (), (1,), True))))
    with pytest.raises(RuntimeError, match=r"step 100 waits for the masks of slots \[0\]"):
        executor.collect()
    with pytest.raises(ValueError, match="a bit a token"):
        executor.allow(0, 100, b"\xff")
    with pytest.raises(ValueError, match="step 99 is not submitted"):
        executor.allow(0, 99, None)
    executor.allow(0, 100, (1 << 77 | 1 << 78).to_bytes(16, "little"))
    first = executor.collect()
    assert first.rows[0].tokens[0] in (77, 78)
    executor.allow(0, 101, (1 << 33).to_bytes(16, "little"))
    assert executor.collect().rows[0].tokens == (33,)


def test_forced_tokens_open_a_slot_again_whose_last_step_is_out(executor: CudaExecutor) -> None:
    prompt, forced = tuple(PROMPT[:5]), (77, 33)
    penalised = replace(SAMPLED, constrained=True, first=5, repetition=1.5, frequency=0.7)
    executor.submit(StepPlan(200, (Row(0, 0, prompt, (0,), True, penalised, prompt),)))
    executor.allow(0, 200, only(forced[0], 128))
    executor.submit(StepPlan(201, (Row(0, 5, forced, (0,), True, penalised, prompt + forced, forced=True),)))
    assert executor.collect().rows[0].tokens == forced[:1]
    executor.allow(0, 201, None)
    together = executor.collect().rows[0].tokens

    executor.submit(StepPlan(202, (Row(1, 0, prompt, (1,), True, penalised, prompt),)))
    for step, token in zip((202, 203), forced, strict=True):
        executor.allow(1, step, only(token, 128))
        assert executor.collect().rows[0].tokens == (token,)
        executor.submit(StepPlan(step + 1, (Row(1, step - 197, (), (1,), True),)))
    executor.allow(1, 204, None)
    assert executor.collect().rows[0].tokens == together


def test_closing_waits_for_no_mask(path: Path) -> None:
    executor = make_cuda(path)
    executor.submit(StepPlan(1, (Row(0, 0, (1, 2), (0,), True, Sampling(constrained=True)),)))
    closing = threading.Thread(target=executor.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(StepPlan(2, ()))


def test_logits_that_are_not_finite_end_one_sequence_only(path: Path) -> None:
    executor = make_cuda(path)
    drive = Driver(executor)
    alone = drive.prefill([1, 2, 3], blocks=(9,))
    executor.weights.embedding.values[9, 0] = np.inf  # in no file that can be packed
    broken, sound = drive.step(Row(1, 0, (5, 9, 6), (0,), True, GREEDY), Row(2, 0, (1, 2, 3), (1,), True, GREEDY))
    assert (broken.tokens, broken.finish) == ((), Finish.ERROR)
    assert (sound.tokens, sound.finish) == (alone, None)
    assert drive.step(Row(1, 3, (4,), (0,), True)) == (RowResult(1),)
    assert drive.step(Row(1, 0, (1, 2, 3), (0,), True, GREEDY))[0].tokens == alone
    drive.executor.close()


def test_a_stop_token_ends_the_slot_while_the_next_step_is_out(drive: Driver, executor: CudaExecutor) -> None:
    token = drive.prefill(PROMPT[:5], blocks=(0,))[0]
    drive.submit(Row(1, 0, tuple(PROMPT[:5]), (1,), True, replace(GREEDY, stop_ids=(127, token))))
    drive.submit(Row(1, 5, (), (1,), True))
    assert executor.collect().rows == (RowResult(1, (token,), Finish.STOP),)
    assert executor.collect().rows == (RowResult(1),)


def test_what_lies_in_unwritten_kv_and_in_padding_does_not_matter(path: Path) -> None:
    drive = Driver(make_cuda(path))
    expected = drive.prefill(PROMPT[:37], blocks=SCATTERED)
    logits = drive.logits()
    drive.executor._buffers.kv.fill_(float("nan"))  # type: ignore[attr-defined]
    drive.executor._buffers.residual.fill_(float("nan"))  # type: ignore[attr-defined]
    drive.executor._buffers.attended.fill_(float("nan"))  # type: ignore[attr-defined]
    assert drive.prefill(PROMPT[:37], blocks=SCATTERED, chunk=20) == expected
    np.testing.assert_array_equal(drive.logits(), logits)
    drive.executor.close()


def test_logprobs_are_told(drive: Driver) -> None:
    row = Row(0, 0, tuple(PROMPT[:5]), (0,), True, replace(SAMPLED, logprobs=3))
    beside = Row(1, 0, tuple(PROMPT[:4]), (1,), True, GREEDY)
    other, found = drive.step(beside, row)
    expected = logprobs(drive.logits(0), found.tokens[0], 3)
    assert other.logprobs == ()
    assert [token for token, _ in found.logprobs[0].top] == [token for token, _ in expected.top]
    assert found.logprobs[0].sampled == pytest.approx(expected.sampled, abs=1e-9)


def test_blocks_move_and_released_memory_comes_back_empty(path: Path) -> None:
    executor = make_cuda(path)
    drive = Driver(executor)
    first = drive.prefill(PROMPT[:20], blocks=(0, 1))
    logits = drive.logits()
    content = executor.read_block(0)
    assert len(content) == executor.block_bytes == 2 * 2 * 16 * 16 * 4
    executor.write_block(5, memoryview(content))
    assert drive.step(Row(1, 16, tuple(PROMPT[16:20]), (5, 6), True, GREEDY))[0].tokens == first
    np.testing.assert_array_equal(drive.logits(1), logits)
    with pytest.raises(ValueError, match="outside the pool of 24"):
        executor.read_block(24)
    with pytest.raises(ValueError, match=f"a block has {executor.block_bytes} bytes, not 3"):
        executor.write_block(0, b"abc")
    executor.release()
    with pytest.raises(ValueError, match="sampled nothing yet"):
        executor.logits(0)
    assert executor.read_block(0) == bytes(executor.block_bytes)
    assert drive.prefill(PROMPT[:20], blocks=(3, 4)) == first
    np.testing.assert_array_equal(drive.logits(), logits)
    executor.close()
    executor.close()


def test_states_its_limits_and_what_decides_its_bits(path: Path, executor: CudaExecutor) -> None:
    assert executor.limits == Limits(slots=8, blocks=24, step_tokens=96, context=128, vocab=128)
    assert "gpu-2-interpreted-f32-kv16" in executor.numerics
    others = make_cuda(path, "f16"), make_cuda(path, kept=True), make_cuda(path, kv_dtype="fp8")
    assert len({executor.numerics, *(other.numerics for other in others)}) == 4
    for other in others:
        other.close()


def test_a_plan_that_breaks_the_contract_is_refused_and_changes_nothing(executor: CudaExecutor) -> None:
    for row, part in (
        (Row(8, 0, (1,), (0,), True, GREEDY), "there are 8 slots"),
        (Row(0, 0, (), (0,), True, GREEDY), "a decode row needs a token"),
        (Row(0, 0, (1,), (0,), True, Sampling(logprobs=21)), "21 log-probabilities"),
    ):
        with pytest.raises(ValueError, match=part):
            executor.submit(StepPlan(1, (row,)))
    with pytest.raises(RuntimeError, match="nothing to collect"):
        executor.collect()
    executor.submit(StepPlan(7, ()))
    assert executor.collect().step == 7
