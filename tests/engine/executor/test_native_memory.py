"""The memory of a native executor: an arena as planned, and weights that processes share."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine import _native
from engine.model import layout
from engine.model.arch import llama_config
from engine.model.gguf import read
from tests.engine.executor.native_models import SHAPES, make_native, write_shape


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("step_tokens", [8, 64])
def test_the_plan_has_what_the_kernels_take(tmp_path: Path, shape: str, threads: int, step_tokens: int) -> None:
    """They refuse a plan in which one piece is missing, left over or of another size."""
    make_native(write_shape(tmp_path, shape), threads=threads, step_tokens=step_tokens).close()


def opened(path: Path, plan: Iterable[layout.Piece], **changes: Any) -> _native.Executor:
    gguf = read(path)
    sizes: dict[str, Any] = {"threads": 2, "slots": 2, "blocks": 4, "context": 64, "step_tokens": 8}
    return _native.Executor(
        str(path),
        changes.pop("config", llama_config(gguf)),
        tuple(gguf.tensors.values()),
        isa="",
        activation_bits=16,
        plan=plan,
        kv_dtype="f16",
        **sizes | changes,
    )


@pytest.mark.parametrize("change", ["missing", "small", "left over", "too few copies"])
def test_a_plan_that_is_not_what_the_kernels_need_is_refused(tiny_path: Path, change: str) -> None:
    sizes = layout.Sizes(step_tokens=8, slots=2, blocks=4, threads=2, context=64)
    first, *others, last = layout.plan(llama_config(read(tiny_path)), 0, sizes).arena
    opened(tiny_path, (first, *others, last)).close()
    wrong = {
        "missing": (*others, last),
        "small": (first._replace(nbytes=first.nbytes - 4), *others, last),
        "left over": (first, *others, last, first._replace(name="more")),
        "too few copies": (first, *others, last._replace(copies=1)),
    }
    with pytest.raises(ValueError, match=r"memory plan: '(residual|more|adjusted logits)'"):
        opened(tiny_path, wrong[change])


def test_the_pieces_that_threads_share_with_nobody_lie_apart(tiny_path: Path) -> None:
    """By their offsets: each thread's copy ends before the next one's begins, and no region reaches into another."""
    config = llama_config(read(tiny_path))
    pieces = layout.plan(config, 1 << 20, layout.Sizes(64, 4, 32, 3)).arena
    assert {piece.copies for piece in pieces} == {1, 3}
    assert all(piece.nbytes <= piece.stride for piece in pieces if piece.copies > 1)
    whole = sorted((p.offset, p.offset + p.nbytes) for p in pieces if p.copies == 1)
    assert all(end <= start for (_, end), (start, _) in pairwise(whole))


NODE = """
import sys
from engine.executor.native import NativeExecutor
from engine.model.arch import llama_config
from engine.model.gguf import read
gguf = read(sys.argv[1])
executor = NativeExecutor(gguf, llama_config(gguf), threads=1, slots=1, blocks=4, context=64, step_tokens=8)
print("ready", flush=True)
sys.stdin.read()
"""


def mapped(pid: int, path: Path) -> dict[str, int]:
    """KiB of a process's mapping of a file: Rss and Pss, proc_pid_smaps(5)."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    block = next(part for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", text) if str(path) in part)
    return {name: int(size) for name, size in re.findall(r"(?m)^(Rss|Pss):\s+(\d+) kB", block)}


def test_two_nodes_share_one_copy_of_the_weights(tmp_path: Path) -> None:
    path = write_shape(tmp_path, "wide heads", "F32")
    command = [sys.executable, "-c", NODE, str(path)]
    nodes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for node in nodes:
            assert node.stdout is not None
            assert node.stdout.readline() == b"ready\n"
        found = [mapped(node.pid, path) for node in nodes]
    finally:
        for node in nodes:
            node.communicate()
    size = -(-path.stat().st_size // 1024)
    for node_memory in found:
        assert node_memory["Rss"] >= size
        assert node_memory["Pss"] <= node_memory["Rss"] // 2 + 1


def test_the_weights_are_in_memory_once_they_are_mapped(tiny_path: Path) -> None:
    executor = make_native(tiny_path)
    found = executor.residency()
    assert found is not None
    assert 0.0 <= found.before <= 1.0 == found.now
    assert found.populate_s >= 0.0
    assert "100% after" in str(found)
    executor.close()


def test_sizes_are_refused_before_what_they_do_to_the_plan(tiny_path: Path) -> None:
    with pytest.raises(ValueError, match="threads is 0"):
        make_native(tiny_path, threads=0)
    with pytest.raises(ValueError, match="memory plan: it is empty"):
        opened(tiny_path, ())
