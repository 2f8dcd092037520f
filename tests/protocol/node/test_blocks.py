from __future__ import annotations

from array import array
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.node import blocks as blocks_module
from edgeproxy.protocol.node.blocks import (
    PREFIX_HEADER,
    BlockChange,
    Change,
    Gap,
    HeldBlocks,
    Prefix,
    Snapshot,
    decode,
    decode_prefix,
)
from edgeproxy.protocol.openai.sse import SseParser
from engine.feed import BlockFeed
from engine.kv import BlockPool, Link, extend

A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))


def snapshot(*blocks: tuple[bytes, bytes], seq: int = 0, part: int = 0, parts: int = 1, run: str = "run") -> Snapshot:
    return Snapshot(run, seq, "bits", 16, part, parts, list(blocks))


def leading(view: HeldBlocks, prefix: Prefix) -> int:
    left = view.left(prefix)
    assert left is None or left.tail in view
    return left.blocks if left else 0


def held(*blocks: tuple[bytes, bytes]) -> HeldBlocks:
    found = HeldBlocks()
    found.apply(snapshot(*blocks))
    return found


@pytest.mark.parametrize(
    "event", [snapshot((A, b""), (B, A), seq=7), Change("run", 8, [(True, B, A), (False, A, b"")])]
)
def test_events_survive_the_wire(event: Snapshot | Change) -> None:
    (parsed,) = SseParser().feed(event.encode())
    assert decode(parsed.data) == event


def test_a_prefix_survives_the_wire() -> None:
    assert decode_prefix(Prefix(A, 112).encode()) == Prefix(A, 112)
    assert PREFIX_HEADER.islower()


@pytest.mark.parametrize(
    "raw", [b"", b"aa", b"aa;blocks=", b"zz;blocks=1", b";blocks=1", b"aa;blocks=-1", b"\xff;blocks=1"]
)
def test_a_prefix_that_cannot_be_read_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_prefix(raw)


WRONG_BLOCKS: list[Any] = [None, 3, [[]], [["zz", ""]], [["", ""]], [[1, 2]]]
GOOD: dict[str, Any] = orjson.loads(snapshot((A, b"")).encode().split(b"data: ")[1])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        *(orjson.dumps({**GOOD, **wrong}) for wrong in ({"kind": "other"}, {"seq": -1}, {"seq": True})),
        *(orjson.dumps({**GOOD, "blocks": wrong}) for wrong in WRONG_BLOCKS),
        orjson.dumps({**GOOD, "blocks": [["aa" * 65, ""]]}),
        orjson.dumps({"kind": "change", "run": "r", "seq": 1, "changes": [["?", "aa", ""]]}),
        orjson.dumps({"kind": "change", "run": 1, "seq": 1, "changes": []}),
    ],
)
def test_an_event_that_cannot_be_read_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode(data)


def test_what_is_left_of_a_prompt_is_its_beginning() -> None:
    found = held((A, b""), (B, A), (C, B))
    prompt = Prefix(C, 3)
    assert leading(found, prompt) == 3
    found.apply(Change("run", 1, [(False, C, B)]))
    assert leading(found, prompt) == 2
    found.apply(Change("run", 2, [(False, B, A), (True, D, A)]))
    assert (leading(found, prompt), leading(found, Prefix(D, 2))) == (1, 2)
    found.apply(Change("run", 3, [(False, D, A), (False, A, b"")]))
    assert leading(found, prompt) == 0


def test_a_prompt_that_was_computed_again_counts_whole() -> None:
    found = held((A, b""), (B, A))
    found.apply(Change("run", 1, [(False, B, A)]))
    found.apply(Change("run", 2, [(True, B, A)]))
    assert leading(found, Prefix(B, 2)) == 2


def test_nothing_is_known_of_what_was_never_held() -> None:
    assert leading(held((A, b"")), Prefix(B, 2)) == 0
    assert leading(HeldBlocks(), Prefix(A, 1)) == 0


def test_a_new_snapshot_is_all_there_is() -> None:
    found = held((A, b""), (B, A), (C, B))
    found.apply(snapshot((A, b""), seq=9))
    assert (len(found), leading(found, Prefix(C, 3)), found.position) == (1, 1, "run-9")


def test_a_snapshot_counts_when_its_last_part_is_there() -> None:
    found = held((A, b""))
    found.apply(snapshot((B, b""), seq=5, part=0, parts=2))
    assert (A in found, B in found, found.position) == (True, False, "run-0")
    found.apply(snapshot((C, B), seq=5, part=1, parts=2))
    assert (A in found, B in found, C in found, found.position) == (False, True, True, "run-5")


@pytest.mark.parametrize(
    "event", [Change("run", 2, []), Change("run", 0, []), Change("other", 1, []), snapshot(part=1, parts=2)]
)
def test_a_missing_event_is_told(event: Snapshot | Change) -> None:
    with pytest.raises(Gap):
        held().apply(event)


def test_a_change_before_any_snapshot_is_a_gap() -> None:
    with pytest.raises(Gap):
        HeldBlocks().apply(Change("run", 0, []))


def test_what_a_node_tells_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "MAX_BLOCKS", 2)
    monkeypatch.setattr(blocks_module, "MAX_EVICTED", 1)
    found = held((A, b""), (B, A))
    with pytest.raises(ValueError, match="more than 2 blocks"):
        found.apply(Change("run", 1, [(True, C, B)]))
    with pytest.raises(ValueError, match="more than 2 blocks"):
        held((A, b""), (B, A), (C, B))
    found = held((A, b""), (B, A))
    found.apply(Change("run", 1, [(False, B, A), (False, A, b"")]))
    assert leading(found, Prefix(B, 2)) == 0


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=12),
    size=st.integers(5, 12),
    cut=st.integers(1, 400),
)
async def test_a_reader_knows_what_the_pool_holds(prompts: list[list[int]], size: int, cut: int) -> None:
    """Prompts of few different blocks run one after the other; the reader's view is compared with the pool's own."""
    changes: list[BlockChange] = []
    pool, feed = BlockPool(size, changes.append), BlockFeed("bits", "run")
    reader, parser, view = feed.reader(), SseParser(), HeldBlocks()
    told: dict[bytes, list[Link]] = {}
    for prompt in prompts:
        links: list[Link] = []
        extend(links, array("I", [token for token in prompt for _ in range(16)]), b"salt")
        found = pool.match(links, b"salt")
        pool.retain(found)
        table = (*found, *pool.allocate(len(links) - len(found)))
        for index in range(len(found), len(links)):
            pool.register(table[index], table[index - 1] if index else b"salt", links[index])
        pool.release(table)
        feed.apply(changes.copy())
        changes.clear()
        told[links[-1][0]] = links
        while view.position != f"run-{feed.seq}":
            raw = await reader.next() or b""
            for start in range(0, len(raw), cut):
                for event in parser.feed(raw[start : start + cut]):
                    view.apply(decode(event.data))
        assert len(view) == pool.evictable
        for tail, chain in told.items():
            assert leading(view, Prefix(tail, len(chain))) == len(pool.match(chain, b"salt"))
