from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeproxy.protocol.node.report import TOKEN_ENV
from engine.cli import main
from engine.model.gguf import read

SERVE = ["serve", "--model-id", "m", "--port", "0"]


def test_help_loads_no_heavy_module() -> None:
    code = (
        "import sys, engine.cli\n"
        "try: engine.cli.main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str([m for m in ('torch', 'tokenizers', 'jinja2', 'rich', 'asyncio') if m in sys.modules]"
        ") if {'torch', 'tokenizers', 'jinja2', 'rich', 'asyncio'} & set(sys.modules) else 0)"
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


@pytest.fixture
def image_path(tiny_text_path: Path, tmp_path: Path) -> Path:
    out = tmp_path / "tiny.image"
    result = CliRunner().invoke(main, ["pack", str(tiny_text_path), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out)
    return out


def test_pack_without_a_name_fills_the_cache_and_says_where(tiny_text_path: Path, tmp_path: Path) -> None:
    said = [
        CliRunner().invoke(main, ["pack", str(tiny_text_path), "--cache", str(tmp_path / "c")]).stdout for _ in range(2)
    ]
    assert said[0] == said[1]
    assert Path(said[0].strip()).parent == tmp_path / "c"
    assert Path(said[0].strip()).is_file()


def test_pack_takes_the_place_of_images_alone(tiny_text_path: Path, tmp_path: Path) -> None:
    source, notes = tmp_path / "model.gguf", tmp_path / "notes.txt"
    source.write_bytes(tiny_text_path.read_bytes())
    notes.write_text("mine")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for taken in (source, notes, pipe, tmp_path):
        result = CliRunner().invoke(main, ["pack", str(source), "-o", str(taken)])
        assert result.exit_code != 0, taken
    assert source.read_bytes() == tiny_text_path.read_bytes()
    assert notes.read_text() == "mine"
    assert pipe.is_fifo()
    for _ in range(2):
        assert CliRunner().invoke(main, ["pack", str(source), "-o", str(tmp_path / "x.image")]).exit_code == 0


def test_pack_of_an_image_says_that_it_is_one_and_not_that_it_is_damaged(image_path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["pack", str(image_path), "-o", str(tmp_path / "again.image")])
    assert result.exit_code == 1
    assert "this is an image, packed already; serve it as it is" in result.output
    assert "damaged" not in result.output
    assert not (tmp_path / "again.image").exists()


def test_pack_into_a_folder_that_is_not_there_says_so(tiny_text_path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["pack", str(tiny_text_path), "-o", str(tmp_path / "none" / "x.image")])
    assert result.exit_code == 1
    assert f"there is no folder {tmp_path / 'none'}" in result.output


def test_pack_writes_behind_a_link_and_leaves_it_one(tiny_text_path: Path, tmp_path: Path) -> None:
    link, behind = tmp_path / "current.image", tmp_path / "kept.image"
    link.symlink_to(behind)
    for _ in range(2):
        assert CliRunner().invoke(main, ["pack", str(tiny_text_path), "-o", str(link)]).exit_code == 0
        assert link.readlink() == behind
        assert behind.is_file()
        assert not behind.is_symlink()


def test_pack_of_another_file_is_a_message(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no model")
    result = CliRunner().invoke(main, ["pack", str(path), "-o", str(tmp_path / "x.image")])
    assert result.exit_code == 1
    assert str(path) in result.output
    assert "Traceback" not in result.output


def test_inspect_shows_configuration_tensors_and_memory(tiny_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(tiny_path), "--kv-tokens", "160"])
    assert result.exit_code == 0
    assert str(tiny_path) in result.output.replace("\n", "")
    for part in ("kv_heads", "rope_theta", "token_embd.weight", "blk.*.attn_q", "tensors", "activations", "arena"):
        assert part in result.output
    assert "memory: 10 blocks" in result.output
    memory = result.output[result.output.index("memory: 10 blocks") :]
    lines = (line for line in memory.splitlines() if line[:1] in ("│", "┃"))
    titles, *rows = [[cell.strip() for cell in re.split("[│┃]", line)[1:-1]] for line in lines]
    assert titles == ["region", "buffer", "offset", "phases", "bytes"]
    rows = [row for row in rows if row[0]]  # a long name goes on in a line of its own
    assert [row[0] for row in rows[-1:]] == ["arena"]
    assert {"weights", "activations", "kv", "sampling"} <= {row[0] for row in rows}
    for _, _, offset, live, nbytes in rows[:-1]:
        assert offset.replace(",", "").isdigit()
        assert nbytes.replace(",", "").isdigit()
        assert re.fullmatch(r"\d+ to \d+", live)


def test_inspect_shows_where_an_image_comes_from(image_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(image_path), "--verify"])
    assert result.exit_code == 0, result.output
    for part in ("version", "instruction sets", "portable", "architecture", "llama", "chat template", "characters"):
        assert part in result.output
    for part in ("layout", "packed from", "tiny.gguf", "weights", "merges", "every section has the hash"):
        assert part in result.output


def test_inspect_verifies_a_gguf_file_as_far_as_can_be(tiny_path: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["inspect", str(tiny_path), "--verify"])
    assert result.exit_code == 0
    assert "no number of its weights is NaN or infinite" in result.output
    tensor = next(tensor for tensor in read(tiny_path).tensors.values() if tensor.dtype == "Q8_0")
    content = bytearray(tiny_path.read_bytes())
    content[tensor.offset : tensor.offset + 2] = b"\xff\x7f"
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(content)
    result = CliRunner().invoke(main, ["inspect", str(damaged), "--verify"])
    assert result.exit_code == 1
    assert f"{tensor.name!r} has NaN or infinity" in result.output


def test_inspect_cuts_no_number_and_says_whether_it_fits(tiny_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["inspect", str(tiny_path)])
    assert "\nfits: needs " in result.output
    result = CliRunner(env={"COLUMNS": "80"}).invoke(main, ["inspect", str(tiny_path), "--kv-tokens", str(1 << 40)])
    assert result.exit_code == 0
    assert "…" not in result.output
    assert f"{(1 << 40) * 2 * 2 * 32 * 2:,}" in result.output
    assert "\ndoes not fit: this node needs" in result.output
    assert "(1) a smaller KV pool: --kv-tokens" in result.output


@pytest.mark.parametrize("weights", ["kept", "dense"])
def test_inspect_for_a_gpu_shows_what_a_gpu_would_hold(tiny_path: Path, weights: str) -> None:
    options = ["--device", "cuda", "--gpu-weights", weights, "--kv-tokens", "160"]
    result = CliRunner(env={"COLUMNS": "120"}).invoke(main, ["inspect", str(tiny_path), *options])
    assert result.exit_code == 0, result.output
    assert "memory: 10 blocks, 16 slots, steps of 128, on a GPU" in result.output
    assert "attended" in result.output, "a buffer of the GPU's plan"
    assert "\nneeds " in result.output
    (line,) = re.findall(r"weights +│ weights +│ +0 │ [^│]+│ +([0-9,]+) ", result.output)
    gguf = read(tiny_path)
    matrices = [tensor for tensor in gguf.tensors.values() if len(tensor.shape) == 2]
    values = sum(rows * cols for rows, cols in (tensor.shape for tensor in matrices))
    vectors = sum(tensor.nbytes for tensor in gguf.tensors.values() if len(tensor.shape) == 1)
    if weights == "dense":
        assert int(line.replace(",", "")) == 2 * values + vectors
    else:
        assert int(line.replace(",", "")) < 2 * values + vectors


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("engine, version ")


def test_inspect_finds_damaged_weights_when_told_to_look(image_path: Path) -> None:
    data = bytearray(image_path.read_bytes())
    data[5000] ^= 1
    image_path.write_bytes(data)
    assert CliRunner().invoke(main, ["inspect", str(image_path)]).exit_code == 0
    result = CliRunner().invoke(main, ["inspect", str(image_path), "--verify"])
    assert result.exit_code == 1
    assert "run engine pack again" in result.output


def test_serving_a_damaged_image_is_a_message(image_path: Path) -> None:
    image_path.write_bytes(image_path.read_bytes()[:-1])
    result = CliRunner().invoke(main, [*SERVE, "--model", str(image_path)])
    assert result.exit_code == 1
    assert "run engine pack again" in result.output
    assert "Traceback" not in result.output


def test_inspect_of_another_file_is_a_message(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no model")
    result = CliRunner().invoke(main, ["inspect", str(path)])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
