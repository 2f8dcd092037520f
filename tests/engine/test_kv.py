from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.node.blocks import BlockChange
from engine.kv import BlockPool, IntegrityError, Link, blocks_for, extend
from engine.step import BLOCK_TOKENS


def links_of(tokens: Sequence[int], salt: bytes = b"") -> list[Link]:
    links: list[Link] = []
    extend(links, array("I", tokens), salt)
    return links


def blocks_of(*values: int) -> list[int]:
    """Tokens of one full block a value."""
    return [value for value in values for _ in range(BLOCK_TOKENS)]


def computed(pool: BlockPool, links: Sequence[Link], salt: bytes = b"") -> tuple[int, ...]:
    """A table for `links`, as a sequence that finds what is there and computes the rest would have it."""
    table = tuple(pool.match(links, salt))
    pool.retain(table)
    first = len(table)
    table += pool.allocate(len(links) - first)
    for index in range(first, len(links)):
        assert pool.register(table[index], table[index - 1] if index else salt, links[index]) == table[index]
    return table


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_a_block_holds_sixteen_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


@given(st.lists(st.integers(0, 3), max_size=70), st.integers(0, 70), st.sampled_from([b"", b"a"]))
def test_links_are_the_same_however_they_are_grown(tokens: list[int], cut: int, salt: bytes) -> None:
    links = links_of(tokens[:cut], salt)
    extend(links, array("I", tokens), salt)
    assert links == links_of(tokens, salt)
    assert len(links) == len(tokens) // BLOCK_TOKENS


def test_a_key_depends_on_salt_and_all_tokens_before() -> None:
    keys = [links_of(blocks_of(*values), salt)[-1][0] for values in ((1, 2), (3, 2)) for salt in (b"", b"a")]
    assert len(set(keys)) == 4


class Mirror:
    """What a listener knows; holds that no block comes or goes while its place in a prefix is not there."""

    def __init__(self) -> None:
        self.parents: dict[bytes, bytes] = {}

    def __call__(self, change: BlockChange) -> None:
        added, key, parent = change
        if added:
            assert key not in self.parents
            assert not parent or parent in self.parents
            self.parents[key] = parent
        else:
            assert self.parents.pop(key) == parent
            assert key not in self.parents.values()


Turn = tuple[str, int, list[int], bytes]
TURNS: st.SearchStrategy[list[Turn]] = st.lists(
    st.tuples(
        st.sampled_from(["open", "open", "close"]),
        st.integers(0, 9),
        st.lists(st.integers(0, 1), min_size=1, max_size=5),
        st.sampled_from([b"", b"other"]),
    ),
    max_size=60,
)


@given(TURNS)
@settings(deadline=None)
def test_what_is_found_was_computed_for_these_tokens_and_nothing_is_lost(turns: list[Turn]) -> None:
    mirror = Mirror()
    pool = BlockPool(12, mirror)
    tables: list[tuple[int, ...]] = []
    holds: dict[int, tuple[bytes, list[int]]] = {}
    for action, number, values, salt in turns:
        if action == "open":
            links = links_of(blocks_of(*values), salt)
            found = pool.match(links, salt)
            for index, block in enumerate(found):
                assert holds[block] == (salt, values[: index + 1])
            if len(values) - pool.held(found) <= pool.available:
                table = computed(pool, links, salt)
                tables.append(table)
                holds.update({block: (salt, values[: index + 1]) for index, block in enumerate(table)})
                assert pool.match(links, salt) == list(table)
        elif tables:
            pool.release(tables.pop(number % len(tables)))
        pool.check(tables)
        assert len(mirror.parents) == pool.total - pool.free
    for table in tables:
        pool.release(table)
    assert pool.available == pool.total


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "drop"]), st.integers(0, 9)), max_size=40))
def test_no_block_has_two_owners_and_none_is_lost(steps: list[tuple[str, int]]) -> None:
    pool = BlockPool(16)
    tables: list[tuple[int, ...]] = []
    for step, number in steps:
        if step == "take" and number <= pool.free:
            taken = pool.allocate(number)
            assert not set(taken) & {block for table in tables for block in table}
            tables.append(taken)
        elif step == "share" and tables:
            table = tables[number % len(tables)]
            pool.retain(table)
            tables.append(table)
        elif step == "drop" and tables:
            pool.release(tables.pop(number % len(tables)))
        pool.check(tables)
    for table in tables:
        pool.release(table)
    assert pool.free == pool.total


def test_the_least_recently_used_goes_first_and_of_a_prefix_the_end() -> None:
    removed: list[bytes] = []
    pool = BlockPool(4, lambda change: None if change[0] else removed.append(change[1]))
    old, new = links_of(blocks_of(1, 2)), links_of(blocks_of(3, 4))
    pool.release(computed(pool, old))
    pool.release(computed(pool, new))
    pool.release(computed(pool, old[:1]))
    pool.allocate(4)
    assert removed == [old[1][0], new[1][0], new[0][0], old[0][0]]


def test_what_is_free_is_taken_before_anything_is_evicted() -> None:
    pool = BlockPool(4)
    links = links_of(blocks_of(1, 2))
    table = computed(pool, links)
    pool.release(table)
    assert (pool.free, pool.evictable, pool.available) == (2, 2, 4)
    pool.allocate(2)
    assert pool.match(links, b"") == list(table)


def test_a_key_without_its_tokens_is_no_hit() -> None:
    pool = BlockPool(4)
    (block,) = pool.allocate(1)
    assert pool.register(block, b"", (b"key", b"tokens")) == block
    assert pool.match([(b"key", b"tokens")], b"") == [block]
    assert pool.match([(b"key", b"others")], b"") == []
    assert pool.match([(b"key", b"tokens")], b"salt") == []


def test_a_key_without_its_parent_is_no_hit() -> None:
    pool = BlockPool(4)
    one, two, end = pool.allocate(3)
    pool.register(one, b"", (b"one", b"1"))
    pool.register(two, b"", (b"two", b"2"))
    pool.register(end, one, (b"end", b"e"))
    assert pool.match([(b"one", b"1"), (b"end", b"e")], b"") == [one, end]
    assert pool.match([(b"two", b"2"), (b"end", b"e")], b"") == [two]


def test_of_two_contents_with_one_key_the_first_stays_and_the_second_is_not_shared() -> None:
    pool = BlockPool(4)
    first, second, after = pool.allocate(3)
    pool.register(first, b"", (b"key", b"1"))
    assert pool.register(second, b"", (b"key", b"2")) == second
    assert pool.register(after, second, (b"after", b"a")) == after
    assert pool.match([(b"key", b"1")], b"") == [first]
    assert pool.match([(b"key", b"2")], b"") == []
    pool.release((second, after))
    assert pool.evictable == 0
    pool.check([(first,)])


def test_a_twin_in_use_takes_the_place_of_the_block() -> None:
    pool = BlockPool(4)
    (link,) = links_of(blocks_of(1))
    (first,) = computed(pool, [link])
    (second,) = pool.allocate(1)
    assert pool.register(second, b"", link) == first
    pool.check([(first,), (first,), (second,)])


def test_an_idle_twin_gives_way_and_what_follows_it_can_still_be_found() -> None:
    pool = BlockPool(4)
    links = links_of(blocks_of(1, 2))
    table = computed(pool, links)
    pool.release(table)
    (block,) = pool.allocate(1)
    assert pool.register(block, b"", links[0]) == block
    assert pool.match(links, b"") == [block, table[1]]
    assert (pool.free, pool.evictable) == (2, 1)
    pool.check([(block,)])


def test_what_is_forgotten_is_not_found_unless_another_holds_it() -> None:
    pool = BlockPool(4)
    links = links_of(blocks_of(1, 2))
    table = computed(pool, links)
    shared = computed(pool, links[:1])
    pool.forget(table)
    assert pool.match(links, b"") == list(shared)
    pool.release(table)
    pool.release(shared)
    assert (pool.free, pool.evictable) == (3, 1)
    pool.check([])


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(1)
    table = pool.allocate(1)
    pool.retain(table)
    pool.release(table)
    assert pool.free == 0
    pool.release(table)
    assert pool.free == 1


def test_misuse_is_an_integrity_error() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    with pytest.raises(IntegrityError, match="2 blocks asked of 1"):
        pool.allocate(2)
    with pytest.raises(IntegrityError, match="0 tables"):
        pool.check([])
    pool.release(table)
    with pytest.raises(IntegrityError, match="twice"):
        pool.release(table)
    with pytest.raises(IntegrityError, match="cannot be shared"):
        pool.retain(table)
