from __future__ import annotations

from edgeproxy.protocol.node.blocks import Change, Prefix, Snapshot
from edgeproxy.routing.evictions import Evictions
from edgeproxy.routing.prefix import ENDS

A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))
NAMES = (11, 12, 13)
SIZE = ENDS[2]
"""Three chunks, three blocks: one block a chunk."""


def snapshot(*blocks: tuple[bytes, bytes], seq: int = 0, part: int = 0, parts: int = 1) -> Snapshot:
    return Snapshot("run", seq, "bits", 16, part, parts, list(blocks))


def known() -> Evictions:
    found = Evictions()
    assert not list(found.apply(snapshot((A, b""), (B, A), (C, B))))
    found.answered(Prefix(C, 3), NAMES, SIZE)
    return found


def test_what_is_evicted_is_told_in_chunks_each_time_less_is_left() -> None:
    found = known()
    assert list(found.apply(Change("run", 1, [(False, C, B)]))) == [(NAMES, 2)]
    assert list(found.apply(Change("run", 2, [(False, B, A), (True, D, A)]))) == [(NAMES, 1)]
    assert list(found.apply(Change("run", 3, [(False, D, A), (False, A, b"")]))) == [(NAMES, 0)]
    assert not list(found.apply(Change("run", 4, [(True, A, b"")])))


def test_evictions_of_one_event_are_told_once() -> None:
    assert list(known().apply(Change("run", 1, [(False, C, B), (False, B, A)]))) == [(NAMES, 1)]


def test_what_is_computed_again_in_the_same_event_is_not_gone() -> None:
    assert not list(known().apply(Change("run", 1, [(False, C, B), (True, C, B)])))


def test_evictions_of_others_prompts_tell_nothing() -> None:
    found = known()
    assert not list(found.apply(Change("run", 1, [(True, D, A)])))
    assert not list(found.apply(Change("run", 2, [(False, D, A)])))


def test_a_snapshot_tells_what_was_missed() -> None:
    found = known()
    assert not list(found.apply(snapshot((A, b""), seq=7, part=0, parts=2)))
    assert list(found.apply(snapshot((D, A), seq=7, part=1, parts=2))) == [(NAMES, 1)]


def test_prompts_are_forgotten_beyond_a_number() -> None:
    found = Evictions(most=1)
    list(found.apply(snapshot((A, b""), (B, b""))))
    found.answered(Prefix(A, 1), (1,), 300)
    found.answered(Prefix(B, 1), (2,), 300)
    assert list(found.apply(Change("run", 1, [(False, A, b""), (False, B, b"")]))) == [((2,), 0)]


def test_a_prompt_without_a_full_block_is_not_remembered() -> None:
    found = Evictions()
    found.answered(Prefix(A, 0), NAMES, SIZE)
    assert not list(found.apply(snapshot()))
