"""A log that nobody reads costs lines, never a request."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from edgeproxy.observe.log import MAX_PENDING_BYTES, Log


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    yield reading, writing
    os.close(reading)
    os.close(writing)


def drain(reading: int) -> bytes:
    pieces: list[bytes] = []
    while True:
        try:
            piece = os.read(reading, 65536)
        except BlockingIOError:
            return b"".join(pieces)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def test_without_a_loop_lines_come_at_once(pipe: tuple[int, int]) -> None:
    log = Log(pipe[1])
    log.say("listening on http://127.0.0.1:8080")
    log.record({"event": "request", "ms": 1.5})
    assert drain(pipe[0]).splitlines() == [b"listening on http://127.0.0.1:8080", b'{"event":"request","ms":1.5}']


async def test_lines_of_a_moment_are_written_together_and_in_order(pipe: tuple[int, int]) -> None:
    log = Log(pipe[1])
    for i in range(100):
        log.record({"i": i})
    assert drain(pipe[0]) == b"", "no write for each line"
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe[0], readable.set)
    async with asyncio.timeout(10):
        await readable.wait()
    asyncio.get_running_loop().remove_reader(pipe[0])
    log.flush()
    assert [orjson.loads(line)["i"] for line in drain(pipe[0]).splitlines()] == list(range(100))


async def test_a_reader_that_stops_blocks_nobody_and_hears_what_it_missed(pipe: tuple[int, int]) -> None:
    log = Log(pipe[1])
    line = {"text": "x" * 1000}
    count = 4 * MAX_PENDING_BYTES // 1000
    for _ in range(count):
        log.record(line)
    log.flush()  # fills the pipe, and returns
    assert log.dropped_lines > 0
    read = b""
    while piece := drain(pipe[0]):
        read += piece
        log.flush()
    lines = read.splitlines()
    told = orjson.loads(lines[-1])
    assert told == {"event": "log_lines_dropped", "lines": log.dropped_lines}
    assert len(lines) - 1 + log.dropped_lines == count
    assert all(orjson.loads(one) == line for one in lines[:-1]), "no line is torn"


async def test_a_reader_that_is_gone_is_no_fault() -> None:
    reading, writing = os.pipe()
    log = Log(writing)
    os.close(reading)
    log.record({"event": "request"})
    log.flush()
    log.say("still alive")
    os.close(writing)


def test_files_work_too(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        log = Log(file.fileno())
        for i in range(1000):
            log.record({"i": i})
    assert len((tmp_path / "log").read_bytes().splitlines()) == 1000


def test_at_the_end_a_slow_reader_gets_every_line_whole(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[0], True)
    log, got = Log(pipe[1]), bytearray()

    def read(wanted: int) -> None:
        while got.count(b"\n") < wanted:
            got.extend(os.read(pipe[0], 4096))

    for i in range(500):
        log.record({"i": i, "text": "x" * 1000})
    reader = threading.Thread(target=read, args=(500,), daemon=True)
    reader.start()
    log.finish(within_s=600)
    reader.join()
    assert [orjson.loads(line)["i"] for line in got.splitlines()] == list(range(500))


def test_at_the_end_a_reader_that_has_stopped_is_not_waited_for(pipe: tuple[int, int]) -> None:
    log = Log(pipe[1])
    for _ in range(500):
        log.record({"text": "x" * 1000})
    log.finish(within_s=0.01)
    assert drain(pipe[0])
