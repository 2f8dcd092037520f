"""How much memory this process may still take: its own limit, its control groups' and the machine's free memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from errno import ENOMEM
from pathlib import Path

from engine.model.layout import Available, mib

RESERVED = 128 << 20
"""Address space that stacks and heaps of threads take and never use (malloc's arenas: 64 MiB each)."""
_NO_LIMIT = 1 << 60
"""cgroup v1 writes a number about as large as it can where there is no limit."""


def available(root: Path = Path("/")) -> Available:
    """The least of what the process's limit, the control groups (v2 or v1) and the machine leave. Page cache that can
    be dropped is free."""
    found = [Available(_free(root), "the machine's free memory"), *_groups(root), *_address_space(root)]
    return min(found, key=lambda one: one.nbytes)


def is_short(error: Exception) -> bool:
    """Whether it is for want of memory that something failed, whoever says so."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == ENOMEM)


def exhausted(root: Path = Path("/")) -> str:
    """For a start that found none, though it should have been enough: somebody else took it, or a limit counts more
    than what is used."""
    left = available(root)
    return (
        f"no memory was left for the node; {left.bound} leaves {mib(left.nbytes)}: (1) raise that; (2) a smaller KV "
        "pool (--kv-tokens); (3) a smaller --step-tokens or fewer --slots; (4) fewer --threads"
    )


def _free(root: Path) -> int:
    """proc_meminfo(5): MemAvailable; no bound where the file is not there."""
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return _NO_LIMIT


def _address_space(root: Path) -> Iterator[Available]:
    """RLIMIT_AS, which counts what is mapped or reserved, used or not (setrlimit(2); proc_pid_limits(5))."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        most = _line(root / "proc/self/limits", "Max address space").split()[0]
        taken = int(_line(root / "proc/self/status", "VmSize:").split()[0]) << 10
        yield Available(max(0, int(most) - taken - RESERVED), "the limit of its address space (ulimit -v)")


def _line(path: Path, begins: str) -> str:
    """What follows there. Raises OSError, StopIteration."""
    lines = path.read_text().splitlines()
    return next(line.removeprefix(begins) for line in lines if line.startswith(begins))


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
