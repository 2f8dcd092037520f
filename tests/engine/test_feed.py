from __future__ import annotations

from typing import Any

import orjson
import pytest

from edgeproxy.protocol.openai.sse import SseParser
from engine.feed import KEEP_ALIVE, READERS, REMEMBERED, BlockFeed, Reader, TooManyReaders

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
RUN = "run"


async def event(reader: Reader) -> dict[str, Any]:
    raw = await reader.next()
    assert raw is not None
    (parsed,) = SseParser().feed(raw)
    found: dict[str, Any] = orjson.loads(parsed.data)
    assert raw.split(b"\n")[0].removeprefix(b"event: ").decode() == found["kind"]
    return found


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


async def test_a_snapshot_comes_first_and_then_every_change() -> None:
    feed = BlockFeed("bits", RUN)
    feed.apply([(True, A, b""), (True, B, A)])
    reader = feed.reader()
    snapshot = await event(reader)
    assert (snapshot["run"], snapshot["seq"], snapshot["numerics"], snapshot["block_tokens"]) == (RUN, 1, "bits", 16)
    assert snapshot["blocks"] == [[A.hex(), ""], [B.hex(), A.hex()]]
    feed.apply([(False, B, A), (True, C, A)])
    feed.apply([])
    feed.apply([(True, B, A)])
    first, second = await event(reader), await event(reader)
    assert (first["seq"], first["changes"]) == (2, [["-", B.hex(), A.hex()], ["+", C.hex(), A.hex()]])
    assert (second["seq"], second["changes"]) == (3, [["+", B.hex(), A.hex()]])


async def test_whoever_comes_later_sees_only_what_is_there() -> None:
    feed = BlockFeed("bits", RUN)
    feed.apply([(True, A, b""), (True, B, A), (False, B, A)])
    assert (await event(feed.reader()))["blocks"] == [[A.hex(), ""]]


async def test_no_event_is_too_long_for_a_reader_of_event_streams() -> None:
    count = 20_000
    feed = BlockFeed("bits", RUN)
    follower = feed.reader()
    await event(follower)
    feed.apply([(True, key(number), key(number - 1)) for number in range(1, count + 1)])
    reader = feed.reader()
    parts = [await event(reader)]
    while len(parts) < parts[0]["parts"]:
        parts.append(await event(reader))
    assert [part["part"] for part in parts] == list(range(parts[0]["parts"]))
    assert sum(len(part["blocks"]) for part in parts) == count


async def test_a_reader_that_falls_behind_gets_a_snapshot_and_goes_on_from_it() -> None:
    feed = BlockFeed("bits", RUN)
    reader = feed.reader()
    await event(reader)
    for _ in range(REMEMBERED // 2 + 1):
        feed.apply([(True, A, b"")])
        feed.apply([(False, A, b"")])
    feed.apply([(True, B, b"")])
    data = await event(reader)
    assert (data["kind"], data["seq"], data["blocks"]) == ("snapshot", REMEMBERED + 3, [[B.hex(), ""]])
    feed.apply([(True, C, B)])
    assert (await event(reader))["seq"] == REMEMBERED + 4


async def test_who_comes_back_is_told_what_it_missed() -> None:
    feed = BlockFeed("bits", RUN)
    feed.apply([(True, A, b"")])
    feed.apply([(True, B, A)])
    feed.apply([(True, C, B)])
    back = feed.reader(f"{RUN}-1")
    assert [(await event(back))["seq"] for _ in range(2)] == [2, 3]


@pytest.mark.parametrize("last", ["", "other-2", f"{RUN}-4", f"{RUN}-x", f"{RUN}-02", f"{RUN}--1", "-", "2"])
async def test_who_comes_back_from_elsewhere_gets_a_snapshot(last: str) -> None:
    feed = BlockFeed("bits", RUN)
    for change in ((True, A, b""), (True, B, A), (True, C, B)):
        feed.apply([change])
    assert (await event(feed.reader(last)))["kind"] == "snapshot"


async def test_who_knows_all_waits_for_the_next() -> None:
    feed = BlockFeed("bits", RUN)
    feed.apply([(True, A, b"")])
    reader = feed.reader(f"{RUN}-1")
    feed.apply([(True, B, A)])
    assert (await event(reader))["seq"] == 2


async def test_a_quiet_feed_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.feed.KEEP_ALIVE_S", 0.0)
    reader = BlockFeed("bits", RUN).reader()
    await event(reader)
    assert await reader.next() == KEEP_ALIVE


async def test_readers_are_limited_and_one_that_leaves_makes_room() -> None:
    feed = BlockFeed("bits", RUN)
    readers = [feed.reader() for _ in range(READERS)]
    with pytest.raises(TooManyReaders):
        feed.reader()
    readers[0].leave()
    readers[0].leave()
    assert await readers[0].next() is None
    feed.reader()


async def test_a_closed_feed_ends_those_who_read_and_those_who_come() -> None:
    feed = BlockFeed("bits", RUN)
    reader = feed.reader()
    await event(reader)
    feed.close()
    assert await reader.next() is None
    assert await feed.reader().next() is None
