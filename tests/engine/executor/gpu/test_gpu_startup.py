"""A start on a GPU, its kernels interpreted; and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from engine import gpu_startup, startup
from engine.cli import main
from engine.executor.cuda import CudaExecutor
from engine.gpu import driver
from engine.model.layout import LayoutError
from engine.startup import INTERPRETED, ModelOptions, Start, StartError
from engine.step import Row, Sampling, StepPlan
from tests.engine.gguf_files import TINY, write_llama

SHAPE = replace(TINY, layers=1, hidden=32, heads=2, kv_heads=1)
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said without a GPU")


@pytest.fixture
def options(tmp_path: Path) -> ModelOptions:
    source = write_llama(tmp_path / "tiny.gguf", SHAPE, text=True)
    return ModelOptions(
        str(source),
        threads=1,
        kv_tokens=64,
        slots=2,
        step_tokens=16,
        cache=tmp_path / "cache",
        device=INTERPRETED,
        gpu_dtype="f32",
    )


def silent(done: int, total: int) -> None:
    pass


def test_a_node_starts_on_the_other_device_by_the_same_way(options: ModelOptions) -> None:
    with Start(options, silent) as start:
        executor = start.result().executor
        assert isinstance(executor, CudaExecutor)
        executor.submit(StepPlan(9, (Row(0, 0, (1, 2, 3), (0,), True, Sampling(0.0)),)))
        assert len(executor.collect().rows[0].tokens) == 1
    assert [name for name, _ in start.phases][:2] == ["image", "map and arena"]


def test_the_image_is_the_devices_own(options: ModelOptions) -> None:
    assert startup.open_image(options, silent).layout == "gpu-f32-kept"
    assert startup.open_image(replace(options, gpu_weights="dense"), silent).layout == "gpu-f32"
    assert startup.open_image(replace(options, device="cpu"), silent).layout == "x16"


def test_a_kv_type_of_the_other_device_is_refused(options: ModelOptions) -> None:
    with pytest.raises(LayoutError, match=r"KV type int8 is none of a GPU's: --kv-dtype f16"):
        startup.open_executor(startup.open_image(options, silent), replace(options, kv_dtype="int8"))
    cpu = replace(options, device="cpu", kv_dtype="fp8")
    with pytest.raises(LayoutError, match="KV type fp8 is not one of f16, int8"):
        startup.open_executor(startup.open_image(cpu, silent), cpu)


def test_auto_is_a_gpu_only_where_driver_packages_and_device_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str | None] = [None, "the GPU has compute capability 7.5"]
    monkeypatch.setattr(driver, "problem", lambda: problems[0])
    told: list[str] = []

    def chosen(asked: str) -> str:
        return startup.chosen_device(asked, tmp_path, told.append)

    assert chosen("auto") == "cpu"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert chosen("auto") == "cuda"
    assert chosen("cpu") == "cpu"
    assert told == []
    problems.pop(0)
    assert chosen("auto") == "cpu"
    assert told.pop() == "on the CPU: the GPU has compute capability 7.5"
    monkeypatch.setattr(gpu_startup, "find_spec", lambda name: None)
    assert chosen("auto") == "cpu"
    assert "torch, triton, numpy cannot be imported" in told.pop()
    assert chosen("cuda") == "cuda"


def test_packages_that_are_missing_are_named_with_the_remedy(
    options: ModelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_startup, "find_spec", lambda name: None if name == "triton" else object())
    with pytest.raises(
        StartError, match=r"triton cannot be imported: install edgeproxy\[gpu\], or run with --device cpu"
    ):
        startup.open_image(options, silent)


def test_an_image_of_another_layout_is_refused(options: ModelOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    image = startup.open_image(replace(options, device="cuda"), silent)
    monkeypatch.setattr(driver, "problem", lambda: None)
    result = CliRunner().invoke(
        main, ["serve", "--model", str(image.path), "--model-id", "m", "--device", "cuda", "--gpu-weights", "kept"]
    )
    assert result.exit_code == 1
    assert "packed as 'gpu-f32-kept', the kernels here read 'gpu-bf16-kept'" in result.output


@no_gpu
def test_a_machine_without_a_gpu_says_so_before_anything_is_packed(options: ModelOptions) -> None:
    start = ["serve", "--model", options.model, "--model-id", "m", "--device", "cuda", "--cache", str(options.cache)]
    result = CliRunner().invoke(main, start)
    assert result.exit_code == 1
    assert "--device cuda: " in result.output
    assert "or run with --device cpu" in result.output
    assert "starting on" not in result.output
    assert not list(Path(str(options.cache)).glob("**/*"))
