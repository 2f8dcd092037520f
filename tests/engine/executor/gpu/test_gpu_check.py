"""scripts/gpu_check, as far as it can run without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.executor.gpu.device import CpuDevice
from engine.gpu.monitor import open_monitor
from engine.gpu_check import real
from engine.gpu_check.rows import rows
from engine.gpu_check.speed import _started, _widened
from engine.gpu_check.watch import Watch
from tests.engine.executor.gpu.cuda_models import TINY_TILES
from tests.engine.gguf_files import TINY, write_llama
from tests.engine.gpu.fake_nvml import Device, FakeNvml

ROOT = Path(__file__).parents[4]
ALONE = """
import builtins, sys
asked, imports = set(), builtins.__import__

def told(name, globals=None, locals=None, fromlist=(), level=0):
    if ((globals or {}).get("__name__") or "").partition(".")[0] == "engine" and level == 0:
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in ("engine", "__future__"):
            asked.add(top)
        if name in ("engine", "engine._native") and (name.endswith("_native") or "_native" in (fromlist or ())):
            asked.add("engine._native")
    return imports(name, globals, locals, fromlist, level)

builtins.__import__ = told
from engine.gpu_check import __main__, correct, real, speed, watch
from engine.gpu.monitor import open_monitor
open_monitor().close()
print(*asked)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [ROOT / "scripts/gpu_check", *arguments], env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("--model", "/nowhere.gguf"), "there is no file /nowhere.gguf"),
        (("--device", "cpu", "--model", __file__), "leave --model out"),
    ],
)
def test_what_it_cannot_check_is_refused_before_anything_runs(arguments: tuple[str, ...], cause: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert cause in done.stderr


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
    assert all(line.startswith("ok") for line in lines[:-1])
    assert len(lines) == 6
    assert lines[-1] == "all as it should be"


def test_a_model_s_tokens_are_held_to_the_cpu_s(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "tiny.gguf", replace(TINY, layers=1, hidden=32, heads=2, kv_heads=1, context=64))
    for dtype, wanted in (("f32", "all"), ("f16", "<= 0.01")):
        (line,) = real.check(CpuDevice(TINY_TILES), str(path), dtype, (1, 2, 3), 6)()
        assert (line.good, line.wanted) == (True, wanted), line
        assert line.found.startswith("5 of 5 of the CPU's")


def test_a_model_that_is_not_at_hand_is_a_failure_only_where_it_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "MODEL", "package:no-such-model/x.gguf")
    for model, good in ((None, None), ("package:no-such-model/x.gguf", False)):
        (line,) = real.check(CpuDevice(TINY_TILES), model, "f32")()
        assert line.good is good
        assert "not run: " in line.found


def test_a_package_that_the_oracle_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_llama(tmp_path / "tiny.gguf", TINY)
    monkeypatch.setitem(sys.modules, "engine.executor.reference", None)
    (line,) = real.check(CpuDevice(TINY_TILES), str(path), "f32")()
    assert (line.good, "engine.executor.reference" in line.found) == (False, True)


def test_all_shares_together_are_less_than_six_minutes() -> None:
    assert sum(row.share_s for row in rows()) <= 350


def test_it_needs_nothing_but_torch_triton_and_numpy() -> None:
    """Nor what is compiled of the project: a machine with a GPU has not built it."""
    done = subprocess.run([sys.executable, "-c", ALONE], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"torch", "triton", "numpy", "pynvml"}


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


def test_tiles_that_do_not_agree_are_told_and_a_failure() -> None:
    found = [(line.good, line.found) for line in (_widened("8B", True), _widened("8B", False))]
    assert found == [(True, "the narrow ones' bits"), (False, "other bits: not used")]
