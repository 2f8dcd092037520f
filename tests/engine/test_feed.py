from __future__ import annotations

from typing import Any

import orjson
import pytest

from edgeproxy.protocol.openai.sse import SseParser
from engine.feed import BACKLOG, KEEP_ALIVE, READERS, BlockFeed, Reader, TooManyReaders

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


async def event(reader: Reader) -> tuple[str, dict[str, Any]]:
    raw = await reader.next()
    assert raw is not None
    (parsed,) = SseParser().feed(raw)
    return raw.split(b"\n")[0].removeprefix(b"event: ").decode(), orjson.loads(parsed.data)


async def test_a_snapshot_comes_first_and_then_every_change() -> None:
    feed = BlockFeed("bits")
    feed.apply([(True, A, b""), (True, B, A)])
    reader = feed.reader()
    assert await event(reader) == (
        "snapshot",
        {"seq": 1, "numerics": "bits", "block_tokens": 16, "blocks": [[A.hex(), ""], [B.hex(), A.hex()]]},
    )
    feed.apply([(False, B, A), (True, C, A)])
    feed.apply([])
    feed.apply([(True, B, A)])
    assert await event(reader) == (
        "change",
        {"seq": 2, "changes": [["-", B.hex(), A.hex()], ["+", C.hex(), A.hex()]]},
    )
    assert await event(reader) == ("change", {"seq": 3, "changes": [["+", B.hex(), A.hex()]]})


async def test_whoever_comes_later_sees_only_what_is_there() -> None:
    feed = BlockFeed("bits")
    feed.apply([(True, A, b""), (True, B, A), (False, B, A)])
    assert (await event(feed.reader()))[1]["blocks"] == [[A.hex(), ""]]


async def test_a_reader_that_falls_behind_gets_a_snapshot_and_goes_on_from_it() -> None:
    feed = BlockFeed("bits")
    reader = feed.reader()
    await event(reader)
    for _ in range(BACKLOG):
        feed.apply([(True, A, b"")])
        feed.apply([(False, A, b"")])
    feed.apply([(True, B, b"")])
    name, data = await event(reader)
    assert (name, data["seq"], data["blocks"]) == ("snapshot", 2 * BACKLOG + 1, [[B.hex(), ""]])
    feed.apply([(True, C, B)])
    assert (await event(reader))[1]["seq"] == 2 * BACKLOG + 2


async def test_a_quiet_feed_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.feed.KEEP_ALIVE_S", 0.0)
    reader = BlockFeed("bits").reader()
    await event(reader)
    assert await reader.next() == KEEP_ALIVE


async def test_readers_are_limited_and_one_that_leaves_makes_room() -> None:
    feed = BlockFeed("bits")
    readers = [feed.reader() for _ in range(READERS)]
    with pytest.raises(TooManyReaders):
        feed.reader()
    readers[0].leave()
    readers[0].leave()
    assert await readers[0].next() is None
    feed.reader()


async def test_a_closed_feed_ends_those_who_read_and_those_who_come() -> None:
    feed = BlockFeed("bits")
    reader = feed.reader()
    await event(reader)
    feed.close()
    assert await reader.next() is None
    assert await feed.reader().next() is None
