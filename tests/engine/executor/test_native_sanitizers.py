"""The C++ tests (tests/csrc), built plainly and with the compiler's sanitizers: memory, undefined behaviour, races."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_CXX_FLAGS=-O1",
    "-DEDGE_MODULE=OFF",
    "-DEDGE_TESTS=ON",
    "-DEDGE_WERROR=ON",
)


def tool(name: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found is not None, f"{name} is not installed; install the project with its [dev] extra"
    return found


def run(*command: str | Path) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def built(sanitizers: str) -> Path:
    """Kept between runs in the build folder; a lock keeps two runs from building at once."""
    folder = ROOT / "build" / f"tests-{sanitizers.replace(',', '-') or 'plain'}"
    folder.mkdir(parents=True, exist_ok=True)
    ninja = f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(tool("cmake"), "-S", ROOT, "-B", folder, "-G", "Ninja", ninja, *FLAGS, f"-DEDGE_SANITIZE={sanitizers}")
        run(tool("cmake"), "--build", folder)
    return folder / "tests" / "csrc" / "edge_tests"


@pytest.mark.parametrize(
    ("sanitizers", "cases"), [("", ()), ("address,undefined", ()), ("thread", ("team_", "executor_"))]
)
def test_nothing_is_found(sanitizers: str, cases: tuple[str, ...]) -> None:
    binary = built(sanitizers)
    for case in cases or ("",):
        assert " passed" in run(binary, case)
