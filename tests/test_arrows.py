"""Imports point down only (ARCHITECTURE.md), and pure rooms stay pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# From the top of the house to its foundations; a room may import rooms that stand after it.
ROOMS = [
    "edgeproxy.cli",
    "edgeproxy.explain",
    "edgeproxy.summary",
    "edgeproxy.top",
    "edgeproxy.admin_key",
    "edgeproxy.server",
    "edgeproxy.preflight",
    "edgeproxy.readiness",
    "edgeproxy.listeners",
    "edgeproxy.reload",
    "edgeproxy.app",
    "edgeproxy.admin",
    "edgeproxy.web",
    "edgeproxy.gateway",
    "edgeproxy.upstream",
    "edgeproxy.wire",
    "edgeproxy.access",
    "edgeproxy.observe",
    "edgeproxy.client",
    "edgeproxy.sim",
    "edgeproxy.routing",
    "edgeproxy.protocol",
    "edgeproxy.config_file",
    "edgeproxy.config_launch",
    "edgeproxy.config_tree",
    "edgeproxy.config",
]
PURE = [
    "edgeproxy/routing",
    "edgeproxy/protocol",
    "engine/scheduler.py",
    "engine/kv.py",
    "engine/load.py",
    "engine/tables.py",
    "engine/waiting.py",
    "engine/forecast.py",
    "engine/chunks.py",
    "engine/fairness.py",
    "engine/gauges.py",
    "engine/admission.py",
    "engine/sequence.py",
    "engine/stall.py",
    "engine/step.py",
    "engine/model/layout.py",
    "engine/model/gpu_layout.py",
    "engine/executor/plans.py",
    "engine/executor/gpu/tiles.py",
    "engine/executor/gpu/clock.py",
    "engine/gpu/faults.py",
    "engine/gpu/fit.py",
    "engine/gpu/view.py",
]
SHARED = {"engine.listener": "edgeproxy.wire"}
"""What of edgeproxy a module of the engine may import instead of the protocol."""
IMPURE = {"asyncio", "socket", "threading", "time", "datetime", "random", "torch", "httpx", "subprocess", "os", "io"}


def modules(*places: str) -> Iterator[tuple[str, Path]]:
    for place in places:
        path = ROOT / place
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def imports(file: Path, module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import; write the full name"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(module: str) -> int | None:
    matches = [i for i, name in enumerate(ROOMS) if module == name or module.startswith(name + ".")]
    return matches[0] if matches else None


@pytest.mark.parametrize(("module", "file"), list(modules("edgeproxy")), ids=lambda value: str(value))
def test_edgeproxy_imports_point_down(module: str, file: Path) -> None:
    own = room(module)
    assert own is not None or module in ("edgeproxy", "edgeproxy.__main__"), f"{module} belongs to no room"
    for name in imports(file, module):
        assert not (name == "engine" or name.startswith("engine.")), f"{module} imports {name}"
        other = room(name)
        if own is not None and other is not None:
            assert other >= own, f"{module} imports {name}, which stands above it"


@pytest.mark.parametrize(("module", "file"), list(modules("engine")), ids=lambda value: str(value))
def test_engine_shares_only_the_protocol_and_its_listener_http(module: str, file: Path) -> None:
    for name in imports(file, module):
        if name.split(".")[0] == "edgeproxy":
            assert name.startswith(SHARED.get(module, "edgeproxy.protocol")), f"{module} imports {name}"


@pytest.mark.parametrize(("module", "file"), list(modules(*PURE)), ids=lambda value: str(value))
def test_pure_rooms_read_no_clock_and_do_no_io(module: str, file: Path) -> None:
    found = {name.split(".")[0] for name in imports(file, module)} & IMPURE
    drawing = ("edgeproxy.routing.choose", "edgeproxy.routing.shortlist")
    allowed = {"random"} if module in drawing else set()  # the type of a passed-in generator
    assert found <= allowed, f"{module} imports {sorted(found - allowed)}"


def test_every_file_holds_one_idea() -> None:
    """Above 400 lines a file is to be thought over again."""
    long = {m: n for m, f in modules("edgeproxy", "engine") if (n := len(f.read_text().splitlines())) > 400}
    assert not long
