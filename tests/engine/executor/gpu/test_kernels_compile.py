"""Every kernel becomes machine code for the GPUs that we mean to run on, with no GPU at hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
LONG = pytest.mark.long
ALL = ("90", "80", "89", "100")


@pytest.mark.parametrize(
    "options", [["90", "--few"], ["80", "--few"], *(pytest.param([arch], marks=LONG) for arch in ALL)]
)
def test_every_kernel_compiles_and_fits_into_shared_memory_and_registers(options: list[str], tmp_path: Path) -> None:
    """The script fails where one takes more than its device has, or than its tiles were chosen by, or spills."""
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(script), *options], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    products = [line for line in lines if re.search("in bf16, (matmul|gated)", line)]
    instruction = "wgmma.m64k16" if options[0] == "90" else "mma.m16k16"
    assert len(products) == (3 if "--few" in options else 18)
    assert {line.rpartition(" ")[2] for line in products} == {instruction}, products
    assert any("in fp32, matmul" in line for line in lines) == (options != ["80", "--few"])
