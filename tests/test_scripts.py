"""What a newcomer types first answers at once, and says what the program itself would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeproxy.cli import main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("asked", ["--help", "-h"])
def test_help_is_told_without_installing_anything(tmp_path: Path, asked: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "VENV": str(tmp_path / "venv")}
    found = subprocess.run(
        [ROOT / "scripts" / "serve", asked], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stderr == ""
    assert not (tmp_path / "venv").exists()
    options = {name for option in main.commands["serve"].params for name in option.opts}
    assert set(re.findall(r"^  (--\w+)", found.stdout, re.MULTILINE)) | {"--help"} == options | {"--help"}
    assert "EDGEPROXY_CONFIG" in found.stdout


def test_the_certificates_line_to_paste_names_the_deployments_port(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text((ROOT / "regions.yaml").read_text().replace("8443", "8503"))
    state = ["--state", str(tmp_path / "state")]
    told = CliRunner().invoke(main, ["dev-cert", *state], env={"EDGEPROXY_CONFIG": str(config)})
    assert "https://localhost:8503/v1/models" in told.output
    told = CliRunner().invoke(main, ["dev-cert", *state, "--config", str(tmp_path / "none.yaml")])
    assert "https://localhost:8443/v1/models" in told.output


@pytest.mark.parametrize(
    ("asked", "python", "status"), [([], "", 0), (["--help"], "", 0), (["--device", "cpu"], "", 1), ([], "none", 2)]
)
def test_a_gpu_check_that_was_asked_for_and_not_run_is_a_failure(
    tmp_path: Path, asked: list[str], python: str, status: int
) -> None:
    if not asked and not python:
        status = int(Path("/dev/nvidiactl").exists())  # there is a GPU, and no Python that could use it
    stand_in = tmp_path / "python3"  # has no torch, and can tell the help
    stand_in.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 1\nexec {sys.executable} "$@"\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VENV": str(tmp_path / "venv")}
    environment |= {"PYTHON": str(tmp_path / python)} if python else {}
    found = subprocess.run(
        [ROOT / "scripts" / "gpu_check", *asked], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == status, found
    assert ("usage: scripts/gpu_check" if asked == ["--help"] else "no GPU check") in found.stdout + found.stderr


@pytest.mark.parametrize(
    "script", ["scripts/bench/first_token.py", "tests/engine/executor/gpu/compile_kernels.py"], ids=["bench", "kernels"]
)
def test_a_script_that_lacks_a_package_says_what_to_do(script: str) -> None:
    without_packages = [sys.executable, "-S", str(ROOT / script), "--help"]
    found = subprocess.run(without_packages, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert re.fullmatch(r"\w+ is missing: run \./scripts/install --dev, and .*\n", found.stderr)
