"""Damage to the weights of a running node: wrong answers end, a mapping cut short says why it kills, and the next
start is sound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

pytest.importorskip("engine._native", reason="the native executor is not built")

from engine import startup
from engine.executor.base import Executor
from engine.integrity import BUSY_REST_S, LOOK_S, WeightsCheck, WeightsDamaged
from engine.model.image import WEIGHTS_AT, Image
from engine.startup import ModelOptions
from tests.engine.fake_executor import FakeExecutor

CHAT = {"model": "m", "messages": [{"role": "user", "content": "the"}], "max_tokens": 3}


@pytest.fixture
def options(tiny_text_path: Path, tmp_path: Path) -> ModelOptions:
    return ModelOptions(
        str(tiny_text_path), threads=1, kv_tokens=128, slots=2, step_tokens=32, cache=tmp_path / "cache"
    )


@pytest.fixture
def image(options: ModelOptions) -> Image:
    return startup.open_image(options, lambda done, total: None)


def rot(path: Path, at: int = WEIGHTS_AT + 100) -> None:
    """Flips a bit in place: whoever maps the file sees it."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def found_by_check(image: Image, executor: Executor) -> list[WeightsDamaged]:
    """By one that stops when it has read all."""
    found: list[WeightsDamaged] = []
    ended = threading.Event()

    def rest(seconds: float) -> bool:
        if seconds == LOOK_S:
            ended.set()
        return ended.is_set()

    def damaged(error: WeightsDamaged) -> None:
        found.append(error)
        ended.set()

    check = WeightsCheck(image, executor, damaged, rest=rest)
    check.start()
    assert ended.wait(20)
    check.stop()
    return found


@pytest.mark.parametrize("mapped", [True, False])
def test_damage_is_found_in_what_the_steps_read(options: ModelOptions, image: Image, mapped: bool) -> None:
    """An executor that keeps a copy of its own has the file looked at."""
    executor: Executor = startup.open_executor(image, options) if mapped else FakeExecutor()
    try:
        assert not found_by_check(image, executor)
        rot(image.path)
        (found,) = found_by_check(image, executor)
        assert found.section == "weights"
        assert str(image.path) in str(found)
    finally:
        executor.close()


@pytest.mark.parametrize("hidden", [False, True], ids=["changed", "changed, and its mtime set back"])
def test_a_file_changed_in_place_is_read_again_at_the_next_look(
    options: ModelOptions, image: Image, hidden: bool
) -> None:
    """Requests are no reason to take longer then."""
    executor = startup.open_executor(image, options)
    found: list[WeightsDamaged] = []
    rests: list[float] = []
    ended = threading.Event()

    def rest(seconds: float) -> bool:
        rests.append(seconds)
        if seconds == LOOK_S:
            before = image.path.stat()
            rot(image.path)
            if hidden:
                os.utime(image.path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return False

    def damaged(error: WeightsDamaged) -> None:
        found.append(error)
        ended.set()

    check = WeightsCheck(image, executor, damaged, lambda: True, rest=rest)
    check.start()
    assert ended.wait(20)
    check.stop()
    assert check.rounds == 1
    assert len(found) == 1
    looked = rests.index(LOOK_S)
    assert rests.count(LOOK_S) == 1
    assert BUSY_REST_S in rests[:looked]
    assert BUSY_REST_S not in rests[looked:]
    executor.close()


def test_a_file_that_took_its_place_is_not_what_the_node_runs(options: ModelOptions, image: Image) -> None:
    executor = startup.open_executor(image, options)
    watched = 0
    ended = threading.Event()

    def rest(seconds: float) -> bool:
        nonlocal watched
        if seconds == LOOK_S:
            watched += 1
            other = image.path.with_suffix(f".{watched}")
            other.write_bytes(b"another")
            other.rename(image.path)
            if watched == 3:
                ended.set()
        return ended.is_set()

    check = WeightsCheck(image, executor, lambda error: pytest.fail("it was read"), rest=rest)
    check.start()
    assert ended.wait(20)
    check.stop()
    assert check.rounds == 1
    executor.close()


@contextmanager
def node(options: ModelOptions) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node's process and its address."""
    command = [sys.executable, "-m", "engine", "serve", "--model", options.model, "--model-id", "m", "--port", "0"]
    sizes = [
        "--threads",
        "1",
        "--kv-tokens",
        "128",
        "--slots",
        "2",
        "--step-tokens",
        "32",
        "--cache",
        str(options.cache),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, *sizes], stdout=pipe, stderr=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().split()[-1]
            assert child.stdout.readline().startswith("ready")
            yield child, url
        finally:
            child.kill()


def fatal(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stderr is not None
    (line,) = (line for line in child.stderr.read().splitlines() if line.startswith("{"))
    found: dict[str, Any] = orjson.loads(line)
    assert found["level"] == "fatal"
    return found


def test_a_node_on_damaged_weights_ends_and_the_next_start_is_sound(options: ModelOptions, image: Image) -> None:
    rot(image.path)
    with node(options) as (child, _):
        assert child.wait(60) == 1
        told = fatal(child)
    assert (told["event"], told["section"], told["image"]) == ("weights_damaged", "weights", str(image.path))
    assert Path(told["set_aside"]).exists()
    with node(options) as (child, url):
        assert httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 200
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert image.path.exists()


def test_an_image_cut_short_under_a_node_is_told_in_the_line_it_dies_with(options: ModelOptions, image: Image) -> None:
    with node(options) as (child, url):
        os.truncate(image.path, WEIGHTS_AT)
        with suppress(httpx.HTTPError):
            httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60)
        assert child.wait(60) == -signal.SIGBUS
        told = fatal(child)
    assert (told["event"], told["image"]) == ("weights_lost", str(image.path))
    assert "engine pack" in told["message"]
