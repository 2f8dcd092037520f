"""What the store gives back is what it was given, or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.store import BlockStore, StoreError

BLOCK = 1000
HEADER = 4096
ENTRY = 64


def name(number: int) -> bytes:
    return number.to_bytes(32)


def content(number: int) -> bytes:
    return bytes((number * 31 + i * (number % 7 + 1)) % 256 for i in range(BLOCK))


def size_of(records: int) -> int:
    return HEADER + records * (ENTRY + BLOCK)


@contextmanager
def opened(path: Path, records: int = 8, numerics: str = "bits", block: int = BLOCK) -> Iterator[BlockStore]:
    store = BlockStore(path, HEADER + records * (ENTRY + block), numerics=numerics, block_bytes=block)
    try:
        yield store
    finally:
        store.close()


def put(store: BlockStore, *numbers: int) -> None:
    for number in numbers:
        store.put(name(number), content(number), timeout_s=10)


def test_what_was_discarded_is_found_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    with opened(path) as store:
        put(store, 1, 2, 3)
    with opened(path) as store:
        assert held(store) == [1, 2, 3]
        store.discard()
        assert held(store) == []
        put(store, 4)
        assert held(store) == []
    with opened(path) as store:
        assert held(store) == []
        put(store, 5)
    with opened(path) as store:
        assert held(store) == [5]


def held(store: BlockStore, most: int = 32) -> list[int]:
    """Numbers whose blocks are there; each must be the very block that was put."""
    found = []
    for number in range(most):
        block = store.get(name(number))
        if block is not None:
            assert bytes(block) == content(number)
            found.append(number)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def test_what_was_put_is_there_after_a_restart(path: Path) -> None:
    with opened(path) as store:
        put(store, 1, 2, 3)
    with opened(path) as store:
        assert held(store) == [1, 2, 3]
        assert store.found == 3
    assert path.stat().st_size == size_of(8)


def test_the_file_is_its_owners_alone(path: Path) -> None:
    with opened(path):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_store_gives_up_what_was_used_least_recently_also_after_a_restart(path: Path) -> None:
    with opened(path, 4) as store:
        put(store, 1, 2, 3, 4)
        store.touch(name(1))
    with opened(path, 4) as store:
        put(store, 5)
    with opened(path, 4) as store:
        assert held(store) == [1, 3, 4, 5]


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "reopen"]), st.integers(0, 11)), max_size=40))
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_it_is_a_dictionary_with_a_bound(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "kv"
    order: list[int] = []
    store = BlockStore(path, size_of(5), numerics="bits", block_bytes=BLOCK)
    for turn, number in [*turns, ("reopen", 0)]:
        if turn == "put":
            put(store, number)
        elif turn == "get" and name(number) in store:
            assert bytes(store.get(name(number)) or b"") == content(number)
        elif turn == "reopen":
            store.close()
            store = BlockStore(path, size_of(5), numerics="bits", block_bytes=BLOCK)
        if turn == "put" or (turn == "get" and number in order and name(number) in store):
            order = [other for other in order if other != number] + [number]
        order = order[-5:]
        assert len(store) == len(order)
    assert held(store) == sorted(order)
    store.close()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"numerics": "other"}, "it holds KV of other numerics (another model, build or KV type)"),
        ({"block": 2 * BLOCK}, "its blocks have 1000 bytes, and this node's 2000"),
        ({"records": 9}, "it has room for 8 blocks, and --kv-store-size now asks for 9"),
    ],
)
def test_of_other_numerics_or_sizes_nothing_is_kept_and_the_log_says_why(
    path: Path, changed: dict[str, object], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as store:
        put(store, 1, 2)
    assert not caplog.messages, "a new file and one that is kept are no news"
    with opened(path, **changed) as store:  # type: ignore[arg-type]
        assert len(store) == 0
    assert caplog.messages == [f"{path}: {why}: what it held is discarded, and it begins empty"]
    with opened(path) as store:
        assert held(store) == []


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_a_flipped_byte_makes_a_block_unknown_and_never_wrong(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("store") / "kv"
    with opened(path, 4) as store:
        put(store, 1, 2, 3, 4)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(7, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    with opened(path, 4) as store:
        found = held(store)
        assert len(found) >= (3 if at >= 64 else 0)
        put(store, 5)
    with opened(path, 4) as store:
        assert set(held(store)) - {5} <= set(found)
        assert 5 in held(store)


@pytest.mark.parametrize("length", [0, 10, HEADER, HEADER + 100, HEADER + 4 * ENTRY, HEADER + 4 * ENTRY + BLOCK + 5])
def test_of_a_file_cut_short_the_rest_is_used(path: Path, length: int) -> None:
    with opened(path, 4) as store:
        put(store, 1, 2, 3, 4)
    os.truncate(path, length)
    with opened(path, 4) as store:
        assert set(held(store)) <= {1, 2, 3, 4}
        put(store, 9)
    with opened(path, 4) as store:
        assert 9 in held(store)


@pytest.mark.parametrize("offset", [7, 20, 40, 60])
def test_a_store_with_a_damaged_head_is_discarded_by_name(
    path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(path) as store:
        put(store, 1)
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    with opened(path) as store:
        assert held(store) == []
    assert caplog.messages == [f"{path}: its head is damaged: what it held is discarded, and it begins empty"]


def test_a_file_cut_short_under_a_running_store_is_a_miss(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path, 4) as store:
        put(store, 1, 2)
    with opened(path, 4) as store:
        os.truncate(path, HEADER)
        assert held(store) == []
        assert store.damaged == 2
    assert caplog.text.count("a block is damaged: it is forgotten and computed again") == 1


def test_two_nodes_do_not_share_a_file(path: Path) -> None:
    with opened(path) as store:
        put(store, 1)
        with pytest.raises(StoreError, match="in use by another node: give each its own --kv-store"):
            BlockStore(path, size_of(8), numerics="bits", block_bytes=BLOCK)
    with opened(path) as store:
        assert held(store) == [1]


def test_a_file_of_something_else_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(bytes(64) + b"a disk image")
    with pytest.raises(StoreError, match="is no KV store"):
        BlockStore(path, size_of(8), numerics="bits", block_bytes=BLOCK)
    assert path.read_bytes() == bytes(64) + b"a disk image"


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (pipe, Path("/dev/null"), tmp_path):
        with pytest.raises(StoreError, match="is no regular file: name another --kv-store"):
            BlockStore(place, size_of(8), numerics="bits", block_bytes=BLOCK)


def test_a_place_that_cannot_lock_a_file_is_not_taken_for_another_nodes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("engine.store.fcntl.flock", no_locks)
    with pytest.raises(StoreError, match=r"cannot be locked \(No locks available\)"):
        BlockStore(path, size_of(8), numerics="bits", block_bytes=BLOCK)


def test_a_place_that_cannot_be_written_and_a_size_too_small_are_told(tmp_path: Path, path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory: name another --kv-store"):
        BlockStore(tmp_path / "no" / "kv", size_of(8), numerics="bits", block_bytes=BLOCK)
    with pytest.raises(StoreError, match=f"must be at least {size_of(1)}"):
        BlockStore(path, size_of(1) - 1, numerics="bits", block_bytes=BLOCK)
    assert not path.exists()


def test_a_size_beyond_the_most_of_a_file_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.store.MOST_RECORDS", 4)
    with opened(path, 9) as store:
        assert store.capacity == 4
    assert caplog.messages == [f"{path}: 4 blocks are the most of one file: {size_of(4)} bytes of it are used"]


def test_a_disk_that_fails_ends_the_tier_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with opened(path) as store:
        monkeypatch.setattr("engine.store.os.pwrite", full)
        put(store, 1)
        while not store.broken:
            threading.Event().wait(0.001)
        put(store, 2)
        assert held(store) == []
        assert store.dropped == 1
        monkeypatch.undo()
    assert caplog.text.count("No space left on device: the node goes on without it") == 1


def test_where_the_disk_is_slow_blocks_are_dropped_and_nobody_waits(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()
    write = os.pwrite

    def slow(fd: int, data: bytes, offset: int) -> int:
        gate.wait(20)
        return write(fd, data, offset)

    monkeypatch.setattr("engine.store.QUEUED_BYTES", 3 * BLOCK)
    with opened(path) as store:
        monkeypatch.setattr("engine.store.os.pwrite", slow)
        for number in range(8):
            store.put(name(number), content(number))
        dropped = store.dropped
        assert 4 <= dropped <= 5, "three wait, and one may be with the writer"
        assert caplog.text.count("the disk is slower than evictions: some blocks are not kept") == 1
        assert held(store) == []
        gate.set()
    monkeypatch.undo()
    with opened(path) as store:
        assert len(held(store)) == 8 - dropped


KILLED = """
import sys
from pathlib import Path
from engine.store import BlockStore
from tests.engine.test_store import BLOCK, content, name, size_of
store = BlockStore(Path(sys.argv[1]), size_of(8), numerics="bits", block_bytes=BLOCK)
print("begun", flush=True)
number = 0
while True:
    store.put(name(number % 32), content(number % 32), timeout_s=10)
    number += 1
"""


@pytest.mark.parametrize("turn", range(3))
def test_a_node_killed_while_it_writes_leaves_only_sound_blocks(path: Path, turn: int) -> None:
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            threading.Event().wait(0.02 * turn)
            child.send_signal(signal.SIGKILL)
        with opened(path) as store:
            assert len(held(store)) <= 8


def test_closing_twice_is_once(path: Path) -> None:
    store = BlockStore(path, size_of(2), numerics="bits", block_bytes=BLOCK)
    store.close()
    store.close()
