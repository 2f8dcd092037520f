"""Whether there is a device to run on, by what CUDA's driver says."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.gpu.driver import _cuda_in, problem


class Driver:
    """libcuda.so.1, with devices of these compute capabilities."""

    def __init__(self, *capabilities: tuple[int, int], code: int = 0) -> None:
        self._capabilities, self._code = capabilities, code

    def cuInit(self, flags: int) -> int:
        return self._code

    def cuDeviceGetCount(self, found: Any) -> int:
        return self._put(found, len(self._capabilities))

    def cuDeviceGetAttribute(self, found: Any, attribute: int, device: int) -> int:
        return self._put(found, self._capabilities[device][attribute - 75])

    def _put(self, found: Any, value: int) -> int:
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int))[0] = value
        return 0


@pytest.fixture
def with_cuda(tmp_path: Path) -> Path:
    (tmp_path / "version.py").write_text("__all__ = ['cuda']\ncuda: Optional[str] = '13.0'\nhip = None\n")
    return tmp_path


def test_a_device_that_the_kernels_run_on_is_no_problem(with_cuda: Path) -> None:
    assert problem(lambda name: Driver((9, 0)), with_cuda) is None
    assert problem(lambda name: Driver((8, 0), (7, 5)), with_cuda) is None


def test_each_problem_is_named(with_cuda: Path, tmp_path: Path) -> None:
    def missing(name: str) -> Any:
        raise OSError("libcuda.so.1: cannot open shared object file")

    assert "there is no CUDA driver (libcuda.so.1" in str(problem(missing, with_cuda))
    assert "no CUDA device (error 100)" in str(problem(lambda name: Driver(code=100), with_cuda))
    assert "no CUDA device; check" in str(problem(lambda name: Driver(), with_cuda))
    assert "capability 7.5; the kernels need 8.0" in str(problem(lambda name: Driver((7, 5)), with_cuda))
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    assert "torch is installed without CUDA" in str(problem(lambda name: Driver((9, 0)), tmp_path))
    assert "torch is installed without CUDA" in str(problem(lambda name: Driver((9, 0)), tmp_path / "nowhere"))


def test_torch_still_says_in_the_same_place_what_it_was_built_with() -> None:
    assert _cuda_in(Path(str(torch.__file__)).parent) == (torch.version.cuda is not None)
    assert "cuda" in (Path(str(torch.__file__)).parent / "version.py").read_text()
