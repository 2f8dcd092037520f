from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv import BlockPool, IntegrityError, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_a_block_holds_sixteen_tokens(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


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
