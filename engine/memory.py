"""How much memory this process may still take: its control groups' limits and the machine's free memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from engine.model.layout import Available

_NO_LIMIT = 1 << 60
"""cgroup v1 writes a number about as large as it can where there is no limit."""


def available(root: Path = Path("/")) -> Available:
    """The least of what the control groups (v2 or v1) and the machine leave. Page cache that can be dropped is free."""
    found = [Available(_free(root), "the machine's free memory"), *_groups(root)]
    return min(found, key=lambda one: one.nbytes)


def _free(root: Path) -> int:
    """proc_meminfo(5): MemAvailable; no bound where the file is not there."""
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return _NO_LIMIT


def _groups(root: Path) -> Iterator[Available]:
    """This process's memory groups and all above them (cgroups(7))."""
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _limits(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            yield from _limits(base, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _limits(base: Path, path: str, limit: str, usage: str, droppable: str) -> Iterator[Available]:
    """A container may see only its own group, at the base, under a path that names nothing there."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        group = base.joinpath(*parts[:depth])
        with suppress(OSError, ValueError):
            most = int((group / limit).read_text())  # "max" is no number: no limit
            if most < _NO_LIMIT:
                used = int((group / usage).read_text()) - _stat(group, droppable)
                yield Available(max(0, most - max(0, used)), f"the memory limit of control group {group}")


def _stat(group: Path, key: str) -> int:
    with suppress(OSError, ValueError):
        for line in (group / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    return 0
