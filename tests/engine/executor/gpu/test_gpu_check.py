"""scripts/gpu_check, as far as it can run without a GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.gpu_check.table import Line, Table

ROOT = Path(__file__).parents[4]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [ROOT / "scripts/gpu_check", *arguments], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_gives_no_figures() -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "no GPU check" in done.stdout
    assert "there are no figures" in done.stdout
    assert "tok/s" not in done.stdout


@pytest.mark.long
def test_its_checks_of_numbers_pass_on_an_interpreted_model() -> None:
    done = run("--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("ok") for line in lines)


def test_what_is_not_as_wanted_raises_or_comes_too_late_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    table = Table(lambda: now[0], limit_s=10)
    table.run("told", lambda: [Line("told", "7 tok/s")])
    table.run("good", lambda: [Line("good", "80 %", ">= 75 %", True)])
    assert table.failed == 0
    table.run("bad", lambda: [Line("bad", "70 %", ">= 75 %", False)])

    def raising() -> Iterator[Line]:
        yield Line("begun", "1")
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    table.run("raising", raising)
    now[0] = 11
    table.run("late", lambda: [Line("never", "0")])
    assert table.failed == 3
    told = capsys.readouterr().out
    assert "FAIL raising" in told
    assert "more" not in told
    assert "not run: out of time" in told
    assert "never" not in told
