"""The C++ tests (tests/csrc), built plainly and with the compiler's sanitizers: memory, undefined behaviour, races."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.gguf_files import write_llama

ROOT = Path(__file__).parents[3]
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_CXX_FLAGS=-O1",
    "-DEDGE_TESTS=ON",
    "-DEDGE_WERROR=ON",
)


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is not installed; install the project with its [dev] extra"
    return found


def run(*command: str | Path, **environment: str) -> str:
    everything = {**os.environ, **environment}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=everything, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def built(sanitizers: str, *options: str) -> Path:
    """The folder, kept between runs in the build folder; a lock keeps two runs from building at once."""
    folder = ROOT / "build" / f"tests-{sanitizers.replace(',', '-') or 'plain'}"
    folder.mkdir(parents=True, exist_ok=True)
    ninja = f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(
            tool("cmake"),
            "-S",
            ROOT,
            "-B",
            folder,
            "-G",
            "Ninja",
            ninja,
            *FLAGS,
            *options,
            f"-DEDGE_SANITIZE={sanitizers}",
        )
        run(tool("cmake"), "--build", folder)
    return folder


@pytest.mark.parametrize(
    ("sanitizers", "cases"),
    [
        ("", ()),
        ("address,undefined", ()),
        ("thread", ("team_", "executor_")),
        pytest.param("thread", (), marks=pytest.mark.long),
    ],
)
def test_nothing_is_found(sanitizers: str, cases: tuple[str, ...]) -> None:
    binary = built(sanitizers, "-DEDGE_MODULE=OFF") / "tests" / "csrc" / "edge_tests"
    for case in cases or ("",):
        assert " passed" in run(binary, case)


def runtime(name: str) -> str:
    """Of a sanitizer, for a process whose program was built without it."""
    found = run(shutil.which("c++") or "c++", f"-print-file-name=lib{name}.so").strip()
    if not Path(found).is_absolute():
        pytest.skip(f"the compiler has no shared lib{name}")
    return found


@pytest.mark.long
def test_nothing_is_found_while_damaged_images_and_ggufs_are_read_and_run(tmp_path: Path) -> None:
    """From Python through the bindings: what is damaged is refused by an error that a start expects, or runs."""
    preload = f"{runtime('asan')} {runtime('ubsan')}"
    cmake = run(sys.executable, "-m", "nanobind", "--cmake_dir").strip()
    options = ("-DEDGE_MODULE=ON", f"-Dnanobind_DIR={cmake}", f"-DPython_EXECUTABLE={sys.executable}")
    (module,) = built("address,undefined", *options).glob("_native*.so")
    source = write_llama(tmp_path / "tiny.gguf", text=True)
    told = run(
        *(sys.executable, "-m", "tests.engine.executor.hostile_files", module, source, tmp_path, "300"),
        LD_PRELOAD=preload,
        ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=2048",
    )
    assert " refused" in told
