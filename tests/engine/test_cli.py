from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeproxy.protocol.node.report import TOKEN_ENV
from engine.cli import main

SERVE = ["serve", "--model-id", "m", "--port", "0"]


def test_help_loads_no_heavy_module() -> None:
    code = (
        "import sys, engine.cli\n"
        "try: engine.cli.main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str([m for m in ('uvicorn', 'torch', 'tokenizers', 'jinja2', 'rich', 'asyncio') if m in sys.modules]"
        ") if {'uvicorn', 'torch', 'tokenizers', 'jinja2', 'rich', 'asyncio'} & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--kv-tokens" in done.stdout


def test_a_model_that_is_not_there_is_a_message_and_an_exit_status() -> None:
    result = CliRunner().invoke(main, [*SERVE, "--model", "/no/such/file.gguf"])
    assert result.exit_code == 1
    assert "/no/such/file.gguf" in result.output
    assert "Traceback" not in result.output


def test_a_bind_that_can_be_reached_from_afar_needs_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)
    result = CliRunner().invoke(main, [*SERVE, "--model", "x", "--host", "0.0.0.0"])
    assert result.exit_code == 1
    assert TOKEN_ENV in result.output


def test_more_slots_than_step_tokens_are_a_usage_error() -> None:
    result = CliRunner().invoke(main, [*SERVE, "--model", "x", "--slots", "8", "--step-tokens", "4"])
    assert result.exit_code == 2
    assert "--step-tokens 4" in result.output


def test_inspect_shows_configuration_and_tensors(tiny_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(tiny_path)])
    assert result.exit_code == 0
    assert str(tiny_path) in result.output.replace("\n", "")
    for part in ("kv_heads", "rope_theta", "token_embd.weight", "tensors"):
        assert part in result.output


def test_inspect_of_another_file_is_a_message(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no model")
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
