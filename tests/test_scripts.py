"""What a newcomer types first answers at once, and says what the program itself would."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

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
