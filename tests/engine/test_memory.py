from __future__ import annotations

from pathlib import Path

from engine.memory import RESERVED, available, exhausted

MIB = 1 << 20


def machine(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def meminfo(mib: int) -> dict[str, str]:
    return {"proc/meminfo": f"MemTotal: 999 kB\nMemFree: 1 kB\nMemAvailable: {mib * 1024} kB\n"}


def v2(group: str, most: str, current: int, inactive_file: int) -> dict[str, str]:
    base = f"sys/fs/cgroup/{group}".rstrip("/")
    stat = f"anon 1\ninactive_file {inactive_file}\n"
    return {f"{base}/memory.max": most, f"{base}/memory.current": f"{current}\n", f"{base}/memory.stat": stat}


def test_without_groups_it_is_what_the_machine_has_free(tmp_path: Path) -> None:
    found = available(machine(tmp_path, meminfo(500)))
    assert found.nbytes == 500 * MIB
    assert found.bound == "the machine's free memory"


def test_a_group_of_v2_leaves_its_limit_less_what_cannot_be_dropped(tmp_path: Path) -> None:
    files = meminfo(5000) | {"proc/self/cgroup": "0::/a/b\n"} | v2("a/b", f"{400 * MIB}\n", 150 * MIB, 50 * MIB)
    found = available(machine(tmp_path, files))
    assert found.nbytes == 300 * MIB
    assert found.bound.endswith("sys/fs/cgroup/a/b")


def limited(most: str, taken_mib: int) -> dict[str, str]:
    head = "Limit                     Soft Limit           Hard Limit           Units     \n"
    return {
        "proc/self/limits": f"{head}Max address space         {most:20} unlimited            bytes     \n",
        "proc/self/status": f"Name:\tpython\nVmPeak:\t  9999999 kB\nVmSize:\t  {taken_mib * 1024} kB\n",
    }


def test_a_limit_of_the_address_space_leaves_what_neither_is_mapped_nor_will_be_reserved(tmp_path: Path) -> None:
    found = available(machine(tmp_path, meminfo(5000) | limited(str(300 * MIB + RESERVED), 180)))
    assert found.nbytes == 120 * MIB
    assert "ulimit -v" in found.bound


def test_an_address_space_without_a_limit_is_none(tmp_path: Path) -> None:
    assert available(machine(tmp_path, meminfo(500) | limited("unlimited", 180))).nbytes == 500 * MIB


def test_who_finds_no_memory_is_told_what_bounds_it_and_what_to_do(tmp_path: Path) -> None:
    said = exhausted(machine(tmp_path, meminfo(5000) | limited(str(300 * MIB + RESERVED), 180)))
    assert "ulimit -v" in said
    assert "120.0 MiB" in said
    assert "(1)" in said
    assert "--kv-tokens" in said


def test_the_tightest_group_above_counts(tmp_path: Path) -> None:
    files = meminfo(5000) | {"proc/self/cgroup": "0::/a/b\n"}
    files |= v2("a/b", "max\n", 0, 0) | v2("a", f"{100 * MIB}\n", 0, 0)
    assert available(machine(tmp_path, files)).nbytes == 100 * MIB


def test_a_container_that_sees_its_own_group_at_the_base(tmp_path: Path) -> None:
    files = meminfo(5000) | {"proc/self/cgroup": "0::/../docker/x\n"} | v2("", f"{64 * MIB}\n", 0, 0)
    assert available(machine(tmp_path, files)).nbytes == 64 * MIB


def test_a_group_of_v1(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory/m"
    files = meminfo(5000) | {
        "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/m\n",
        f"{base}/memory.limit_in_bytes": f"{200 * MIB}\n",
        f"{base}/memory.usage_in_bytes": f"{120 * MIB}\n",
        f"{base}/memory.stat": f"cache 1\ntotal_inactive_file {20 * MIB}\n",
    }
    assert available(machine(tmp_path, files)).nbytes == 100 * MIB


def test_a_v1_group_without_a_limit_and_a_broken_one_bound_nothing(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory"
    files = meminfo(700) | {
        "proc/self/cgroup": "4:memory:/m\n",
        f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
        f"{base}/memory.usage_in_bytes": "1\n",
        f"{base}/m/memory.limit_in_bytes": "what\n",
    }
    assert available(machine(tmp_path, files)).nbytes == 700 * MIB


def test_a_group_that_is_over_its_limit_leaves_nothing(tmp_path: Path) -> None:
    files = meminfo(700) | {"proc/self/cgroup": "0::/\n"} | v2("", f"{MIB}\n", 2 * MIB, 0)
    assert available(machine(tmp_path, files)).nbytes == 0


def test_this_machine_has_some() -> None:
    assert available().nbytes > 0
