"""What the native executor refuses, and that refusing changes nothing and ends no process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from engine.executor.native import NativeExecutor
from engine.model.arch import llama_config
from engine.model.gguf import Gguf, TensorInfo, read
from engine.step import Row, Sampling, StepPlan
from tests.engine.executor.driver import GREEDY, Driver
from tests.engine.executor.native_models import make_native

NAME = "blk.1.ffn_down.weight"


def build(gguf: Gguf, **changes: Any) -> NativeExecutor:
    sizes: dict[str, Any] = {"threads": 1, "slots": 2, "blocks": 4, "context": 64, "step_tokens": 32}
    return NativeExecutor(gguf, changes.pop("config", None) or llama_config(gguf), **sizes | changes)


def with_tensor(gguf: Gguf, name: str, **changes: Any) -> Gguf:
    tensors = dict(gguf.tensors)
    tensors[name] = tensors[name]._replace(**changes)
    return replace(gguf, tensors=MappingProxyType(tensors))


@pytest.fixture
def tiny(tiny_path: Path) -> Gguf:
    return read(tiny_path)


@pytest.fixture
def drive(tiny_path: Path) -> Iterator[Driver]:
    executor = make_native(tiny_path, blocks=64, context=256, step_tokens=64)
    yield Driver(executor)
    executor.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"offset": 1 << 40}, f"{NAME} ends outside the file"),
        ({"offset": (1 << 64) - 4}, f"{NAME} ends outside the file"),
        ({"offset": 1 << 64}, f"{NAME}: offset must be an integer"),
        ({"offset": -32}, f"{NAME}: offset must be an integer"),
        ({"offset": 6}, f"{NAME}: offset is not a multiple of 4"),
        ({"nbytes": 0}, f"{NAME} has 0 bytes, expected 3840"),
        ({"nbytes": (1 << 64) - 1}, f"{NAME} has 18446744073709551615 bytes"),
        ({"nbytes": -1}, f"{NAME}: nbytes must be an integer"),
        ({"shape": (96, 64)}, rf"{NAME} has shape \[96, 64\], expected \[64, 96\]"),
        ({"shape": (64,)}, rf"{NAME} has shape \[64\]"),
        ({"shape": (1 << 63, 1 << 63)}, f"{NAME} has shape"),
        ({"shape": (-64, 96)}, f"{NAME}: shape must be an integer"),
        ({"dtype": "Q6_K"}, f"{NAME}: dtype Q6_K is not one of F32, F16, Q4_1, Q8_0, Q4_1x16, Q8_0x16"),
        ({"dtype": "F32"}, f"{NAME} has 3840 bytes, expected 24576"),
    ],
)
def test_a_hostile_tensor_table_is_refused(tiny: Gguf, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(with_tensor(tiny, NAME, **change), config=llama_config(tiny))


def test_the_last_byte_of_the_file_may_be_used_and_no_byte_more(tiny: Gguf, tiny_path: Path, tmp_path: Path) -> None:
    last = max(tiny.tensors.values(), key=lambda tensor: tensor.offset)
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_path.read_bytes()[: last.offset + last.nbytes])
    build(replace(tiny, path=path)).close()
    path.write_bytes(tiny_path.read_bytes()[: last.offset + last.nbytes - 1])
    with pytest.raises(ValueError, match=f"{last.name} ends outside the file"):
        build(replace(tiny, path=path))


def test_missing_doubled_and_unknown_tensors_are_refused(tiny: Gguf) -> None:
    config = llama_config(tiny)
    tensors = dict(tiny.tensors)
    bias = TensorInfo("blk.0.attn_q.bias", "F32", (64,), 0, 256)
    cases = {
        f"tensor {NAME} is missing": {key: value for key, value in tensors.items() if key != NAME},
        f"tensor {NAME} occurs twice": tensors | {"again": tensors[NAME]},
        "tensor blk.0.attn_q.bias is no part": tensors | {bias.name: bias},
        "a norm must be F32": tensors
        | {"output_norm.weight": tensors["output_norm.weight"]._replace(dtype="F16", nbytes=128)},
    }
    for message, table in cases.items():
        with pytest.raises(ValueError, match=message):
            build(replace(tiny, tensors=MappingProxyType(table)), config=config)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("layers", 0, "layers is 0"),
        ("layers", 1 << 31, "layers is 2147483648"),
        ("hidden", 63, "hidden is 63; this executor needs a multiple of 32"),
        ("ffn", 1 << 30, "ffn is 1073741824"),
        ("heads", 3, r"heads \* head_dim is 48"),
        ("kv_heads", 3, "is not a multiple of kv_heads"),
        ("head_dim", 8, "head_dim is 8; this executor needs a multiple of 16"),
        ("vocab", (1 << 32) - 1, "vocab is 4294967295"),
        ("vocab", 1 << 32, "vocab must be an integer"),
        ("rope_theta", float("nan"), "rope_theta must be a positive number"),
        ("rms_eps", -1.0, "rms_eps must be a number >= 0"),
    ],
)
def test_a_senseless_configuration_is_refused(tiny: Gguf, name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(tiny, config=replace(llama_config(tiny), **{name: value}))


@pytest.mark.parametrize("name", ["threads", "slots", "blocks", "context", "step_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1 << 31, 1 << 40])
def test_senseless_sizes_are_refused(tiny: Gguf, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        build(tiny, **{name: value})


def test_a_file_that_cannot_be_mapped_is_refused(tiny: Gguf, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    for path, message in ((tmp_path / "none", "cannot open"), (tmp_path, "not a regular file"), (empty, "is empty")):
        with pytest.raises(RuntimeError, match=message):
            build(replace(tiny, path=path))


def test_a_kv_pool_that_no_machine_has_is_a_memory_error(tiny: Gguf) -> None:
    with pytest.raises(MemoryError):
        build(tiny, blocks=1 << 24, context=1 << 24, step_tokens=1 << 16, slots=4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot": 8}, "row of slot 8: there are 8 slots"),
        ({"slot": -1}, "slot must be an integer"),
        ({"start": -1}, "start must be an integer"),
        ({"start": 255}, "ends at position 257, the context has 256"),
        ({"start": (1 << 32) - 1}, "ends at position 4294967297"),
        ({"start": 15}, "1 blocks do not cover 17 positions"),
        ({"blocks": ()}, "0 blocks do not cover 2 positions"),
        ({"blocks": (64,)}, "block 64 is outside the pool of 64"),
        ({"blocks": (3, 64)}, "block 64 is outside the pool of 64"),
        ({"blocks": (-1,)}, "blocks must be an integer"),
        ({"blocks": [3]}, "blocks must be a tuple"),
        ({"tokens": (128,)}, "token 128 is outside the vocabulary of 128"),
        ({"tokens": (-1,)}, "tokens must be an integer"),
        ({"tokens": ("a",)}, "tokens must be an integer"),
        ({"tokens": ()}, "a decode row, but the slot has sampled no token"),
        ({"opens": None, "slot": 7}, "row of slot 7: the slot was never opened"),
        ({"tokens": (1,) * 65, "blocks": tuple(range(5))}, "has 65 tokens or more, the limit is 64"),
        ({"tokens": (1,) * 20, "blocks": (3, 3)}, "block 3 is written twice"),
        ({"opens": Sampling(temperature=-1)}, "temperature must be a number >= 0"),
        ({"opens": Sampling(temperature=float("inf"))}, "temperature must be a number >= 0"),
        ({"opens": Sampling(top_p=0)}, "top_p must be in"),
        ({"opens": Sampling(top_p=1.5)}, "top_p must be in"),
        ({"opens": Sampling(top_p=float("nan"))}, "top_p must be in"),
    ],
)
def test_a_row_beyond_the_limits_is_refused_and_changes_nothing(
    drive: Driver, change: dict[str, Any], message: str
) -> None:
    prompt = [5, 17, 99, 3, 3, 120]
    drive.prefill(prompt, blocks=(0, 1))
    expected = drive.logits()
    with pytest.raises(ValueError, match=message):
        drive.submit(replace(Row(1, 0, (1, 2), (3,), True, GREEDY), **change))
    with pytest.raises(RuntimeError, match="nothing to collect"):
        drive.executor.collect()
    np.testing.assert_array_equal(drive.logits(), expected)
    assert len(drive.step(Row(0, len(prompt), (), (0, 1), True))[0].tokens) == 1


def test_rows_that_contradict_one_another_are_refused(drive: Driver) -> None:
    row = Row(0, 0, (1, 2), (3,), True, GREEDY)
    with pytest.raises(ValueError, match="row of slot 0: the slot has another row"):
        drive.submit(row, replace(row, blocks=(4,)))
    with pytest.raises(ValueError, match="row of slot 1: block 3 is written twice"):
        drive.submit(row, replace(row, slot=1))
    many = [replace(row, slot=slot, blocks=(slot, 9 + slot), tokens=(1,) * 17) for slot in range(4)]
    with pytest.raises(ValueError, match="the step has 68 tokens or more"):
        drive.submit(*many)
    assert len(drive.step(row)[0].tokens) == 1


def test_a_refused_plan_opens_no_slot(drive: Driver) -> None:
    row = Row(0, 0, (1, 2), (3,), True, GREEDY)
    with pytest.raises(ValueError):
        drive.submit(row, replace(row, slot=1, tokens=(999,)))
    with pytest.raises(ValueError, match="never opened"):
        drive.submit(Row(0, 2, (), (3,), True))


def test_a_slot_opened_again_must_sample_before_it_decodes(drive: Driver) -> None:
    drive.step(Row(0, 0, (1, 2), (3,), True, GREEDY))
    drive.step(Row(0, 0, (1, 2), (3,), False, GREEDY))
    with pytest.raises(ValueError, match="has sampled no token yet"):
        drive.submit(Row(0, 2, (), (3,), True))
    with pytest.raises(ValueError, match="slot 0 has sampled nothing"):
        drive.executor.logits(0)
    with pytest.raises(ValueError, match="there are 8 slots"):
        drive.executor.logits(8)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_can_neither_use_the_executor_nor_hang_on_it(drive: Driver) -> None:
    drive.step(Row(0, 0, (1, 2), (3,), True, GREEDY))
    plan = StepPlan(9, (Row(0, 0, (1, 2), (3,), True, GREEDY),))
    calls: list[Callable[[], object]] = [lambda: drive.executor.submit(plan), drive.executor.collect]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                refused += "belongs to the process that made it" in str(error)
        drive.executor.close()
        os._exit(40 + refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 42
    assert len(drive.step(Row(0, 2, (), (3,), True))[0].tokens) == 1
