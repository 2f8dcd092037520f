"""The check's rows run on, whatever one of them does: with stand-ins in processes of their own, and no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.gpu_check import __main__ as program
from engine.gpu_check.driver import Command, Driver, Timed
from engine.gpu_check.table import Table

ROOT = Path(__file__).parents[4]
LONG_S = 600.0
PROGRAM = """
import os, signal, sys, threading
from engine.gpu_check.table import Line
from engine.gpu_check.worker import end_with_parent, serve, teller

def told(*lines):
    def check():
        print("noise of a library")
        yield from lines
    return check

def raises():
    yield Line("begun", "1")
    raise RuntimeError("CUDA error: an illegal memory access\\nmore")

def hangs():
    yield Line("before it hangs", "1")
    threading.Event().wait()

def dies():
    os.kill(os.getpid(), signal.SIGSEGV)
    yield

checks = {
    "told": told(Line("told", "7 tok/s")),
    "good": told(Line("good", "80 %", ">= 75 %", True)),
    "bad": told(Line("bad", "70 %", ">= 75 %", False)),
    "raises": raises, "hangs": hangs, "dies": dies,
    "process": told(Line("process", str(os.getpid()))),
    "again": told(Line("again", str(os.getpid()))),
}
tell = teller(int(sys.argv[1]))
end_with_parent()
if sys.argv[2] == "absent":
    tell({"absent": "there is nothing"})
elif sys.argv[2] == "cannot start":
    sys.exit(3)
else:
    tell({"head": "a device"})
    serve(checks, sys.argv[2:], tell)
"""


def command(names: Sequence[str], descriptor: int) -> list[str]:
    return [sys.executable, "-c", PROGRAM, str(descriptor), *names]


def driven(capfd: pytest.CaptureFixture[str], *checks: tuple[str, float]) -> tuple[list[str], int]:
    """Names and shares -> lines, and how many failed."""
    table = Table()
    assert Driver(command, table).run([Timed(*check) for check in checks]) is None
    return [line for line in capfd.readouterr().out.splitlines() if "noise" not in line], table.failed


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_what_raises_or_dies_fails_alone_and_its_process_is_not_used_again(capfd: pytest.CaptureFixture[str]) -> None:
    lines, failed = driven(capfd, *((name, LONG_S) for name in ("told", "good", "process", "again", "raises")))
    assert failed == 1
    assert [line[:4].strip() for line in lines] == ["a de", "", "ok", "", "", "", "FAIL"]
    assert lines[3].split()[-1] == lines[4].split()[-1], "one process, while nothing is wrong"
    assert "CUDA error: an illegal memory access" in lines[-1]
    assert "more" not in lines[-1]
    lines, failed = driven(capfd, *((name, LONG_S) for name in ("raises", "process", "dies", "again", "bad")))
    assert failed == 3
    first, second = (next(line for line in lines if line.split()[0] == name) for name in ("process", "again"))
    assert first.split()[-1] != second.split()[-1]
    assert any(line.startswith("FAIL dies") and "SIGSEGV" in line for line in lines)
    assert lines[-1].startswith("FAIL bad")
    assert sum(line == "a device" for line in lines) == 1


def test_what_hangs_is_ended_and_the_rest_runs_in_its_own_time(capfd: pytest.CaptureFixture[str]) -> None:
    lines, failed = driven(capfd, ("hangs", 1.0), ("good", LONG_S))
    assert failed == 1
    assert any(line.startswith("FAIL hangs") and "not done after" in line for line in lines)
    assert lines[-1].startswith("ok   good")


def test_where_there_is_no_time_nothing_is_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    lines, failed = driven(capfd, ("hangs", 0.0), ("hangs", 0.0))
    assert failed == 2
    assert all("not done after" in line for line in lines)


def test_a_process_that_cannot_start_fails_its_row(capfd: pytest.CaptureFixture[str]) -> None:
    lines, failed = driven(capfd, ("cannot start", LONG_S), ("good", LONG_S))
    assert failed == 1
    assert "ended with status 3" in lines[0]
    assert lines[-1].startswith("ok   good")


def test_a_worker_ends_with_who_started_it() -> None:
    reads, writes = os.pipe()
    with subprocess.Popen(command(["hangs"], writes), stdin=subprocess.PIPE, pass_fds=[writes]) as worker:
        os.close(writes)
        with os.fdopen(reads) as told:
            assert "head" in told.readline()
            assert worker.stdin is not None
            worker.stdin.close()
            assert worker.wait(60) == 1


def with_command(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The program, its workers being stand-ins that run these."""

    class Standing(Driver):
        def __init__(self, _: Command, table: Table) -> None:
            super().__init__(lambda _, descriptor: command(names, descriptor), table)

    monkeypatch.setattr(program, "Driver", Standing)


def test_no_device_is_no_failure_but_where_nvidias_driver_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with_command(monkeypatch, "absent")
    assert program.main(["NVML"], tmp_path / "nvidiactl") == 0
    assert "no GPU check: there is nothing. Nothing was run, and there are no figures." in capfd.readouterr().out
    (tmp_path / "nvidiactl").touch()
    assert program.main(["NVML"], tmp_path / "nvidiactl") == 1
    assert capfd.readouterr().out.startswith("FAIL no GPU check: there is nothing, but NVIDIA's driver is loaded")


def test_its_status_says_whether_something_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, status, last in (("good", 0, "all as it should be"), ("bad", 1, "1 failed")):
        with_command(monkeypatch, name)
        assert program.main(["NVML"]) == status
        assert capfd.readouterr().out.splitlines()[-1] == last


def test_a_check_that_there_is_not_is_refused_naming_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main(["no such"])
    assert "8B, bf16" in capsys.readouterr().err
