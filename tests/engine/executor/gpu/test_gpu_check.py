"""scripts/gpu_check, as far as it can run without a GPU."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.executor.gpu.device import CpuDevice
from engine.gpu.monitor import open_monitor
from engine.gpu_check import real, table
from engine.gpu_check.speed import _started
from engine.gpu_check.table import Line, Table
from engine.gpu_check.watch import Watch
from tests.engine.executor.gpu.cuda_models import TINY_TILES
from tests.engine.gguf_files import TINY, write_llama
from tests.engine.gpu.fake_nvml import Device, FakeNvml

ROOT = Path(__file__).parents[4]
PATIENCE_S = 30


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
    assert len(lines) == 4
    assert all(line.startswith("ok") for line in lines)


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_what_is_not_as_wanted_raises_or_comes_too_late_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    found = Table(lambda: now[0], limit_s=10)
    found.run("told", lambda: iter([Line("told", "7 tok/s")]))
    found.run("good", lambda: iter([Line("good", "80 %", ">= 75 %", True)]))
    assert found.failed == 0
    found.run("bad", lambda: iter([Line("bad", "70 %", ">= 75 %", False)]))

    def raising() -> Iterator[Line]:
        yield Line("begun", "1")
        raise RuntimeError("CUDA error: an illegal memory access\nmore")

    found.run("raising", raising)
    now[0] = 11
    found.run("late", lambda: iter([Line("never", "0")]))
    assert found.failed == 3
    lines = "\n".join(told(capsys))
    assert "FAIL raising" in lines
    assert "more" not in lines
    assert "not run: out of time" in lines
    assert "never" not in lines


def test_a_check_that_takes_too_long_is_ended_and_cleans_up_and_the_next_one_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    found = Table(lambda: now[0], limit_s=100)
    cleaned: list[bool] = []

    def slow() -> Iterator[Line]:
        try:
            for number in range(5):
                now[0] += 4
                yield Line(f"line {number}", "")
        finally:
            cleaned.append(True)

    found.run("slow", slow, limit_s=10)
    assert cleaned == [True]
    found.run("next", lambda: iter([Line("next", "", "", True)]))
    lines = told(capsys)
    assert [line.split()[1] for line in lines[:-2]] == ["0", "1", "2"]
    assert lines[-2].startswith("FAIL slow")
    assert "not done after 10 s" in lines[-2]
    assert lines[-1].startswith("ok   next")
    assert found.failed == 1


def test_a_check_that_hangs_ends_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(table, "GRACE_S", 0.0)
    ended = threading.Event()
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    def hanging() -> Iterator[Line]:
        assert ended.wait(PATIENCE_S), "nobody ended it"
        yield Line("woken", "")

    Table(lambda: 0.0, limit_s=100, end=end).run("hanging", hanging, limit_s=0.01)
    assert statuses == [1]
    assert told(capsys)[0].startswith("FAIL hanging")


def test_a_model_s_tokens_are_held_to_the_cpu_s(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", replace(TINY, layers=1, hidden=32, heads=2, kv_heads=1, context=64))
    for dtype, wanted in (("f32", "all"), ("f16", "<= 0.01")):
        (line,) = real.check(CpuDevice(TINY_TILES), str(path), dtype, (1, 2, 3), 6)()
        assert (line.good, line.wanted) == (True, wanted), line
        assert line.found.startswith("5 of 5 of the CPU's")


def test_a_model_that_is_not_at_hand_is_no_failure() -> None:
    (line,) = real.check(CpuDevice(TINY_TILES), "package:no-such-model/x.gguf", "f32")()
    assert line.good is None
    assert "not run: " in line.found


def test_what_nvml_tells_under_load_is_in_the_table() -> None:
    fake = FakeNvml(Device(links=[(1, 16), (4, 16)], sm=[93.0]))
    watch = Watch(open_monitor(environ={}, module=fake))
    assert [line.found for line in watch.device()][-1] == "generation 1 x16"
    with watch.upload():
        pass
    assert watch.link("8B").found == "generation 4 x16 of generation 5 x16"
    busy = watch.busy()
    assert busy.line("8B").found == "93%, memory 50%"
    watch.close()
    assert fake.open == []


def test_what_nvml_does_not_tell_is_said_with_the_reason() -> None:
    older = Watch(open_monitor(environ={}, module=FakeNvml(Device(gpm=False))))
    assert "begin with Hopper" in older.busy().line("8B").found
    none = Watch(open_monitor(environ={}, module=FakeNvml(fails={"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"})))
    with none.upload():
        pass
    assert none.busy().line("8B").found.startswith("not told: ")
    assert none.link("8B").found.startswith("not told: the GPU is not watched")
    for watch in (older, none):
        watch.close()


def test_a_start_is_split_by_phase() -> None:
    phases = (("opened", 1.25), ("first step", 0.5), ("kernels", 0.75), ("graphs", 0.25), ("weights", 1.0))
    line = _started("8B", phases)
    assert line.found == "1.75 s: first step 0.50, kernels 0.75, graphs 0.25, weights 1.00"
