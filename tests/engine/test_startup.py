from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from errno import ENOMEM
from pathlib import Path

import pytest

pytest.importorskip("engine._native", reason="the native executor is not built")

from engine import startup
from engine.executor import built
from engine.executor.native import NativeExecutor
from engine.model.image import ImageError
from engine.model.layout import Available, LayoutError
from engine.model.pack import PART
from engine.startup import ModelOptions, Start, StartError
from engine.step import Row, Sampling, StepPlan
from tests.engine.gguf_files import write_llama


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ModelOptions:
    folder = tmp_path_factory.mktemp("model")
    source = write_llama(folder / "tiny.gguf", text=True)
    return ModelOptions(str(source), threads=1, kv_tokens=128, slots=2, step_tokens=32, cache=folder / "cache")


MODULES = 110
"""Of this repository, for a first token: each takes some half a millisecond of a start."""


def silent(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize("error", [MemoryError("std::bad_alloc"), OSError(ENOMEM, "Cannot allocate memory")])
def test_a_start_that_finds_no_memory_says_what_can_be_done(
    options: ModelOptions, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(startup, "open_executor", refuse)
    with Start(options, silent) as start, pytest.raises(StartError, match=r"\(1\).*--kv-tokens"):
        start.result()


def test_a_start_on_a_module_that_is_behind_its_sources_names_the_remedy(
    options: ModelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built, "behind", lambda *_: "built from others: run scripts/install")
    with Start(options, silent) as start, pytest.raises(StartError, match="run scripts/install"):
        start.result()


def test_a_model_starts_from_its_image_as_from_its_file(options: ModelOptions) -> None:
    image = startup.open_image(options, silent)
    again = startup.open_image(replace(options, model=str(image.path)), silent)
    assert again == image
    executor = startup.open_executor(image, options)
    try:
        assert executor.limits.blocks == 8
        assert executor.limits.context == 128
        assert image.digest in executor.numerics
        executor.submit(StepPlan(1, (Row(0, 0, (1, 2, 3), (0,), True, Sampling(temperature=0.0)),)))
        assert len(executor.collect().rows[0].tokens) == 1
    finally:
        executor.close()


def test_the_text_of_an_image_renders_and_encodes(options: ModelOptions) -> None:
    text = startup.open_text(startup.open_image(options, silent))
    rendered = text.template.render([{"role": "user", "content": "the"}])
    assert rendered == "<|im_start|>the<|im_end|><|im_start|>"
    assert text.tokenizer.encode(rendered) == [0, 99, 1, 0]
    assert text.tokenizer.eos_ids == (1,)


def test_a_model_without_a_template_does_not_start(options: ModelOptions, tmp_path: Path) -> None:
    image = startup.open_image(replace(options, model=str(write_llama(tmp_path / "bare.gguf"))), silent)
    with pytest.raises(StartError, match="no chat template; use an instruction-tuned model"):
        startup.open_text(image)


def test_a_template_that_renders_nothing_does_not_start(options: ModelOptions) -> None:
    image = startup.open_image(options, silent)
    assert image.template is not None
    broken = replace(image, template=image.template._replace(source="{{ raise_exception('never') }}"))
    with pytest.raises(ValueError, match="never"):
        startup.open_text(broken)


def test_what_does_not_fit_is_refused_before_anything_is_taken(
    options: ModelOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.memory.available", lambda: Available(1 << 20, "a small machine"))
    monkeypatch.setattr("engine.executor.native.NativeExecutor", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(LayoutError, match=r"a small machine leaves 1\.0 MiB"):
        startup.open_executor(startup.open_image(options, silent), options)


def test_the_plan_counts_the_weights_of_the_image(options: ModelOptions) -> None:
    image = startup.open_image(options, silent)
    plan = startup.memory_plan(image, options)
    assert plan.region("weights").buffers[0].buffer.nbytes == image.sections["weights"].nbytes


def test_the_executor_takes_what_the_plan_says(options: ModelOptions) -> None:
    """Private writable memory, less the stacks of the executor's threads."""
    code = """
import resource, sys
from pathlib import Path
from engine import startup
from engine.startup import ModelOptions

def status(key):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))

options = ModelOptions(sys.argv[1], 2, 1 << 20, slots=64, step_tokens=4096, cache=Path(sys.argv[2]))
image = startup.open_image(options, print)
memory, threads = status("VmData:") << 10, status("Threads:")
executor = startup.open_executor(image, options)
stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
stacks = (status("Threads:") - threads) * (stack if stack != resource.RLIM_INFINITY else 2 << 20)
print((status("VmData:") << 10) - memory - stacks)
print(sum(region.apart for region in startup.memory_plan(image, options).regions if region.name != "weights"))
"""
    command = [sys.executable, "-c", code, options.model, str(options.cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    taken, planned = map(int, done.stdout.split()[-2:])
    assert planned > 200 << 20
    assert abs(taken - planned) < 4 << 20


def test_a_start_opens_a_model_whose_first_tokens_have_come_out(options: ModelOptions) -> None:
    ended = threading.Event()
    start = Start(options, silent)
    start.then(ended.set)
    opened = start.result()
    try:
        assert ended.wait(10)
        late = threading.Event()
        start.then(late.set)
        assert late.is_set()
        assert [name for name, _ in start.phases] == [
            "image",
            "map and arena",
            "tokenizer and template",
            "rest of warm-up",
        ]
        opened.executor.submit(StepPlan(3, (Row(0, 0, (1,), (0,), True, Sampling(temperature=0.0)),)))
        assert len(opened.executor.collect().rows[0].tokens) == 1
    finally:
        opened.executor.close()


def test_weights_are_read_before_the_start_where_that_is_wanted(options: ModelOptions, tmp_path: Path) -> None:
    options = replace(options, cache=tmp_path, verify=True)
    image = startup.open_image(options, silent)
    sound = image.path.read_bytes()
    rotten = sound[:5000] + bytes([sound[5000] ^ 1]) + sound[5001:]
    image.path.write_bytes(rotten)
    assert startup.open_image(options, silent) == image
    assert image.path.read_bytes() == sound  # packed again
    mine = tmp_path / "mine"
    mine.write_bytes(rotten)
    with pytest.raises(ImageError, match="its weights do not have the hash"):
        startup.open_image(replace(options, model=str(mine)), silent)


def test_a_start_loads_nothing_that_a_first_token_does_not_need(options: ModelOptions) -> None:
    """A start is bound by what the interpreter loads: nothing of this may come back unseen."""
    startup.open_image(options, silent)
    code = """
import sys
from pathlib import Path
import engine.server
from engine.startup import ModelOptions, Start
options = ModelOptions(sys.argv[1], 1, 128, slots=2, step_tokens=32, cache=Path(sys.argv[2]))
with Start(options, print) as start:
    start.result().text.tokenizer.encode("the")
late = {"torch", "numpy", "tokenizers", "llguidance", "rich", "gguf", "starlette", "httpx", "opentelemetry", "decimal"}
late |= {"jinja2", "engine.text.jinja", "email.utils", "multiprocessing", "prometheus_client", "h2", "aioquic"}
late |= {"tempfile", "glob", "engine.model.pack"}
late |= {"engine.model.source", "engine.integrity", "engine.completions", "engine.text.grammar", "engine.store"}
late |= {"engine.metrics", "engine.traces", "engine.tokens", "engine.gpu_startup", "edgeproxy.protocol.openai.openapi"}
print(sum(name.split(".")[0] in ("engine", "edgeproxy") for name in sys.modules), *sorted(late & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, options.model, str(options.cache)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own, *late = done.stdout.split()
    assert not late
    assert int(own) <= MODULES


def test_a_start_that_fails_says_why_and_keeps_nothing(options: ModelOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    def close(executor: NativeExecutor, closing: Callable[[NativeExecutor], None] = NativeExecutor.close) -> None:
        closed.append(executor.limits.slots)
        closing(executor)

    monkeypatch.setattr(NativeExecutor, "close", close)
    monkeypatch.setattr("engine.startup.open_text", lambda image: int("no text"))
    start = Start(options, silent)
    ended = threading.Event()
    start.then(ended.set)
    assert ended.wait(10)
    with pytest.raises(StartError, match="no text"):
        start.result()
    assert closed == [2]


def test_a_start_that_is_not_wanted_any_more_ends_and_leaves_nothing(options: ModelOptions, tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        assert go_on.wait(10)

    ended = threading.Event()
    with Start(replace(options, cache=tmp_path), progress) as start:
        start.then(ended.set)
        assert begun.wait(10)
        threading.Timer(0.01, go_on.set).start()
    assert ended.wait(10)
    assert not list(tmp_path.glob("*.image"))
    assert not list(tmp_path.glob(f".*{PART}"))


def test_a_model_that_was_opened_is_closed_at_the_end(options: ModelOptions) -> None:
    with Start(options, silent) as start:
        opened = start.result()
    with pytest.raises(RuntimeError, match="closed"):
        opened.executor.collect()


def test_a_process_knows_its_age() -> None:
    first = startup.process_age()
    assert first > 0
    assert startup.process_age() >= first
    assert re.fullmatch(r"\d+\.\d+", str(first))
