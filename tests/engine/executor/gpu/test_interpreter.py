"""What interpreter.py leaves out of triton's interpreter is left out for nothing."""

from __future__ import annotations

import pytest
import torch
from triton.runtime import interpreter

from engine.executor.gpu import launch
from engine.executor.gpu.matrix import Matrix
from engine.executor.gpu.tiles import INTERPRETED


def product() -> torch.Tensor:
    """By a kernel that calls others."""
    source = torch.Generator().manual_seed(3)
    x = torch.randn(3, 64, generator=source)
    levels = torch.randint(0, 256, (40, 32), generator=source, dtype=torch.uint8)
    scales, minimums = (torch.rand(40, 2, generator=source).half() for _ in range(2))
    out = torch.zeros(3, 40)
    launch.multiply(INTERPRETED, x, (Matrix(40, 64, 4, levels, scales, minimums),), out)
    return out


def test_a_kernel_gives_what_it_gives_in_the_whole_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    found = product()
    executor = interpreter.GridExecutor
    monkeypatch.setattr(executor, "_restore_args_dev", executor._restore_args_dev.__wrapped__)
    monkeypatch.setattr(interpreter, "_patch_lang", interpreter._patch_lang.__wrapped__)
    assert found.any()
    assert torch.equal(product(), found)


def test_a_tensor_on_the_cpu_is_given_to_a_kernel_as_it_is() -> None:
    storage = torch.zeros(8).untyped_storage()
    assert storage.cpu().data_ptr() == storage.data_ptr()  # type: ignore[no-untyped-call]
