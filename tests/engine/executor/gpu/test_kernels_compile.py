"""Every kernel becomes machine code for the GPUs that we mean to run on, with no GPU at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("arch", [90, pytest.param(80, marks=pytest.mark.long)])
def test_every_kernel_compiles(arch: int, tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script), str(arch)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert len(lines) == 19
    products = [line for line in lines if "matmul" in line]
    instruction = "wgmma.m64k16" if arch >= 90 else "mma.m16k16"
    assert [line.rpartition(" ")[2] for line in products] == [instruction] * 4, products
