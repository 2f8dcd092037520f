from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from edgeproxy.routing.prefix import ENDS, LEVELS, PrefixView, chain, depth_of, held_bytes
from tests.routing.fleet import depths

TEXT = Random(1).randbytes(20_000)


def test_prompts_that_begin_alike_have_names_that_begin_alike_and_tenants_share_none() -> None:
    one, other = chain(TEXT, 7), chain(TEXT[:3000] + bytes(8) + TEXT[3008:], 7)
    assert one[: depth_of(3000)] == other[: depth_of(3000)]
    assert not set(one[depth_of(3000) :]) & set(other)
    assert not set(one) & set(chain(TEXT, 8))
    assert chain(TEXT[:5000], 7) == one[: depth_of(5000)]


def test_chunks_grow_with_their_distance_from_the_beginning_and_end_at_a_bound() -> None:
    assert chain(b"x" * 255, 1) == ()
    assert len(chain(b"x" * 256, 1)) == 1
    assert len(chain(bytes(4 * ENDS[-1]), 1)) == len(ENDS) == 256
    assert [held_bytes(depth) for depth in (0, 1, 64, 65)] == [0, 256, 16384, 17408]
    assert all(depth_of(held_bytes(depth)) == depth for depth in range(257))


def test_what_was_sent_is_held_and_each_node_has_its_own_depth() -> None:
    view = PrefixView()
    a, b, c = view.join(), view.join(), view.join()
    names = chain(TEXT, 1)
    view.sent(a, names)
    view.sent(b, names[:10])
    assert depths(view, names) == {a: len(names), b: 10}
    assert depths(view, chain(TEXT, 2)) == {}
    view.unsent(a, names, 3)
    assert depths(view, names) == {a: 3, b: 10}
    view.lost(b)
    view.sent(c, names[:1])
    assert depths(view, names) == {a: 3, c: 1}


def test_an_answer_that_counts_less_than_was_believed_costs_the_older_half() -> None:
    view = PrefixView()
    slot = view.join()
    old, new = chain(TEXT[: 256 * 10], 1), chain(TEXT[: 256 * 10], 2)
    view.sent(slot, old)
    view.sent(slot, new)
    view.overestimated(slot)
    assert depths(view, old) == {}
    assert depths(view, new) == {slot: 10}


def test_a_node_forgets_the_ends_of_what_was_used_longest_ago() -> None:
    view = PrefixView(node_chunks=20)
    slot = view.join()
    first, second = chain(TEXT[: 256 * 12], 1), chain(TEXT[: 256 * 12], 2)
    view.sent(slot, first)
    view.sent(slot, second)
    assert depths(view, second) == {slot: 12}
    assert depths(view, first) == {slot: 8}  # its beginning is kept, as a node keeps the blocks that others stand on


def test_capacity_is_the_nodes_own() -> None:
    view = PrefixView()
    slot = view.join()
    view.capacity(slot, tokens=640, bytes_per_token=4.0)
    view.sent(slot, chain(TEXT[: 256 * 12], 1))
    assert depths(view, chain(TEXT[: 256 * 12], 1)) == {slot: 10}


def test_a_slot_given_again_knows_nothing_of_its_former_node() -> None:
    view = PrefixView()
    slot, names = view.join(), chain(TEXT, 1)
    view.sent(slot, names)
    view.leave(slot)
    assert view.size == 0
    assert view.join() == slot
    assert depths(view, names) == {}


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["sent", "unsent", "lost"]), st.integers(0, 3), st.integers(0, 5), st.integers(0, 30)
        ),
        max_size=60,
    )
)
def test_it_is_bounded_and_both_of_its_tables_agree(steps: list[tuple[str, int, int, int]]) -> None:
    view = PrefixView(node_chunks=40, total_chunks=100)
    slots = [view.join() for _ in range(4)]
    prompts = [chain(TEXT[: 256 * 30], key) for key in range(6)]
    for what, slot, prompt, depth in steps:
        names = prompts[prompt][:depth]
        if what == "sent":
            view.sent(slots[slot], names)
            assert depths(view, names).get(slots[slot], 0) == min(len(names), 25)
        elif what == "unsent":
            view.unsent(slots[slot], prompts[prompt], depth)
            assert depths(view, prompts[prompt]).get(slots[slot], 0) <= depth
        else:
            view.lost(slots[slot])
        assert view.size <= 100
    for slot in slots:
        view.lost(slot)
    assert view.size == 0


def test_of_many_depths_the_deepest_are_told_apart_and_none_is_taken_for_more_than_it_is() -> None:
    view, names = PrefixView(), chain(TEXT, 1)
    held = {view.join(): 1 + 2 * number for number in range(2 * LEVELS)}
    for slot, depth in held.items():
        view.sent(slot, names[:depth])
    found = depths(view, names)
    deepest = sorted(held, key=held.__getitem__, reverse=True)[: LEVELS - 1]
    assert found.keys() == held.keys() and len(set(found.values())) == LEVELS
    assert all(found[slot] == held[slot] for slot in deepest)
    assert all(found[slot] <= held[slot] for slot in held)
