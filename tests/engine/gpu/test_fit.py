from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.gpu.device import Holder, Memory
from engine.gpu.fit import CONTEXT_BYTES, Needs, Other, check_fits
from engine.model.layout import LayoutError
from engine.step import BLOCK_TOKENS

MIB = 1 << 20
GIB = 1 << 30
WANTED = Needs((("weights", 8 * GIB), ("kv", 4 * GIB)), 1024, 4 * MIB)


def memory(free: int, total: int = 80 * GIB) -> Memory:
    return Memory(total, free, total - free)


def refusal(free: int, holders: tuple[Holder, ...] = (), others: tuple[Other, ...] = (), total: int = 80 * GIB) -> str:
    with pytest.raises(LayoutError) as raised:
        check_fits(WANTED, "GPU 0 (H100)", memory(free, total), holders, others)
    return str(raised.value)


def test_what_fits_is_let_in_to_the_byte() -> None:
    check_fits(WANTED, "GPU 0", memory(WANTED.nbytes))
    assert "needs" in refusal(WANTED.nbytes - 1)


def test_a_refusal_names_device_sums_and_holders() -> None:
    text = refusal(10 * GIB, (Holder(41, "python3", 60 * GIB), Holder(42, None, 9 * GIB), Holder(43, None, None)))
    assert "this node needs 12,928 MiB of GPU 0 (H100) (weights 8,192 MiB, kv 4,096 MiB, CUDA 640 MiB)" in text
    assert "10,240 MiB of 81,920 MiB are free" in text
    assert "process 41 (python3) holds 61,440 MiB, process 42 holds 9,216 MiB, 1,024 MiB are held by the driver" in text


def test_remedies_are_numbered_and_each_would_do() -> None:
    others = (Other("GPU 1 (H100)", "GPU-b", GIB), Other("GPU 2 (H100)", "GPU-c", 70 * GIB))
    text = refusal(10 * GIB, (Holder(41, "python3", 60 * GIB),), others)
    assert re.findall(r"\((\d)\) (\w+ \w+)", text) == [
        ("1", "a smaller"),
        ("2", "end process"),
        ("3", "use GPU"),
        ("4", "a smaller"),
    ]
    assert "CUDA_VISIBLE_DEVICES=GPU-c" in text


def test_no_remedy_is_offered_that_would_not_do() -> None:
    text = refusal(GIB, (Holder(41, None, GIB),), (Other("GPU 1", "b", GIB),), total=4 * GIB)
    assert "--kv-tokens" not in text
    assert "end process" not in text
    assert "use GPU" not in text
    assert "a device with at least 12,928 MiB" in text


@given(
    weights=st.integers(0, 1 << 40), blocks=st.integers(1, 1 << 20), kv_block=st.integers(1, 1 << 24), data=st.data()
)
def test_the_pool_that_a_refusal_names_fits(weights: int, blocks: int, kv_block: int, data: st.DataObject) -> None:
    wanted = Needs((("weights", weights), ("kv", blocks * kv_block)), blocks, kv_block)
    free = data.draw(st.integers(0, wanted.nbytes - 1))
    with pytest.raises(LayoutError) as raised:
        check_fits(wanted, "GPU 0", Memory(1 << 50, free, 0))
    named = re.search(r"--kv-tokens (\d+)", str(raised.value))
    fitting = (free - weights - CONTEXT_BYTES) // kv_block
    assert (int(named[1]) if named else 0) == max(0, fitting) * BLOCK_TOKENS
