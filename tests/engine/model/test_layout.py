from __future__ import annotations

import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.layout import (
    ALIGNMENT,
    PAGE,
    PROCESS_BYTES,
    Available,
    Buffer,
    LayoutError,
    Plan,
    Sizes,
    aligned,
    check_fits,
    kv_token_bytes,
    place,
    plan,
)
from engine.step import BLOCK_TOKENS
from tests.engine.gguf_files import TINY

SIZES = Sizes(step_tokens=128, slots=16, blocks=512, threads=2)


@st.composite
def buffers(draw: st.DrawFn) -> list[Buffer]:
    found = []
    for index in range(draw(st.integers(1, 24))):
        first = draw(st.integers(0, 12))
        found.append(Buffer(f"b{index % 5}", draw(st.integers(1, 5000)), first, draw(st.integers(first, 14))))
    return found


def live(given_buffers: list[Buffer], phase: int) -> int:
    return sum(aligned(b.nbytes, ALIGNMENT) for b in given_buffers if b.first <= phase <= b.last)


@given(buffers())
def test_no_two_live_buffers_overlap(given_buffers: list[Buffer]) -> None:
    placed = place(given_buffers)
    assert [p.buffer for p in placed] == given_buffers
    for one, other in combinations(placed, 2):
        if one.buffer.beside(other.buffer):
            assert one.end <= other.offset or other.end <= one.offset


@given(buffers())
def test_offsets_are_aligned_and_the_total_lies_between_its_bounds(given_buffers: list[Buffer]) -> None:
    placed = place(given_buffers)
    assert all(p.offset % ALIGNMENT == 0 and p.offset >= 0 for p in placed)
    total = aligned(max(p.end for p in placed), ALIGNMENT)
    peak = max(live(given_buffers, phase) for phase in range(15))
    assert peak <= total <= sum(aligned(b.nbytes, ALIGNMENT) for b in given_buffers)
    assert total <= 3 * peak


def test_buffers_that_are_never_live_together_share_bytes() -> None:
    chain = [Buffer(str(i), 640, i, i + 1) for i in range(9)]
    assert max(p.end for p in place(chain)) == 1280


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 4096), st.integers(1, 16), st.integers(1, 10**9))
def test_regions_follow_one_another_in_whole_pages(
    step_tokens: int, slots: int, blocks: int, threads: int, weights: int
) -> None:
    found = plan(TINY, weights, Sizes(step_tokens, slots, blocks, threads))
    assert [region.name for region in found.regions] == ["weights", "activations", "kv", "sampling"]
    end = 0
    for region in found.regions:
        assert region.offset == end
        assert region.nbytes % PAGE == 0
        assert all(p.end <= region.nbytes for p in region.buffers)
        end += region.nbytes
    assert found.nbytes == end
    assert found.region("kv").apart == blocks * BLOCK_TOKENS * kv_token_bytes(TINY)


def test_a_token_of_kv_has_keys_and_values_of_all_layers() -> None:
    assert kv_token_bytes(TINY) == 2 * 2 * 2 * 16 * 2
    assert kv_token_bytes(TINY, "int8") == 2 * 2 * 2 * (16 + 2)
    with pytest.raises(LayoutError, match="KV type f8 is not one of f16, int8"):
        kv_token_bytes(TINY, "f8")


@given(st.integers(1, 4096), st.integers(1, 64), st.integers(1, 600), st.integers(1, 16))
def test_no_two_pieces_of_the_arena_overlap_unless_one_thread_needs_them_at_different_times(
    step_tokens: int, slots: int, blocks: int, threads: int
) -> None:
    found = plan(TINY, 5000, Sizes(step_tokens, slots, blocks, threads))
    placed = [p for region in found.regions[1:] for p in region.buffers]
    ranges = [
        (piece.offset + copy * piece.stride, piece.nbytes, copy, one.buffer)
        for piece, one in zip(found.arena, placed, strict=True)
        for copy in range(piece.copies)
    ]
    for (start, size, copy, one), (other_start, other_size, other_copy, other) in combinations(ranges, 2):
        if one.beside(other) or copy != other_copy:
            assert start + size <= other_start or other_start + other_size <= start
    assert all(start % ALIGNMENT == 0 for start, _, _, _ in ranges)
    assert max(start + size for start, size, _, _ in ranges) <= found.nbytes - found.regions[0].nbytes


def planned() -> Plan:
    return plan(TINY, 50 << 20, SIZES)


def needed(found: Plan) -> int:
    return sum(region.apart for region in found.regions) + PROCESS_BYTES


def test_what_fits_is_let_through_and_one_byte_less_is_refused() -> None:
    check_fits(planned(), Available(needed(planned()), "x"))
    with pytest.raises(LayoutError):
        check_fits(planned(), Available(needed(planned()) - 1, "x"))


def test_a_refusal_says_what_is_needed_what_there_is_and_numbers_the_remedies() -> None:
    found = planned()
    with pytest.raises(LayoutError) as caught:
        check_fits(found, Available(needed(found) - 1000, "the limit of x"))
    message = str(caught.value)
    for part in (
        "weights 50.0 MiB",
        "kv ",
        "the limit of x leaves",
        "(1) a smaller KV pool",
        "(2) ",
        "raise the limit of x",
    ):
        assert part in message
    numbers = [int(number) for number in re.findall(r"\((\d)\)", message)]
    assert numbers == list(range(1, len(numbers) + 1))


@given(st.integers(1, 4 << 20))
def test_the_kv_pool_that_a_refusal_names_fits(missing: int) -> None:
    found = planned()
    available = Available(needed(found) - missing, "x")
    with pytest.raises(LayoutError) as caught:
        check_fits(found, available)
    if match := re.search(r"--kv-tokens (\d+)", str(caught.value)):
        smaller = Sizes(SIZES.step_tokens, SIZES.slots, int(match[1]) // BLOCK_TOKENS, SIZES.threads)
        check_fits(plan(TINY, 50 << 20, smaller), available)
    else:
        assert missing > (SIZES.blocks - 1) * found.kv_block


def test_a_pool_that_can_shrink_no_further_is_not_offered() -> None:
    with pytest.raises(LayoutError) as caught:
        check_fits(planned(), Available(0, "x"))
    assert "--kv-tokens" not in str(caught.value)
    assert "(1) raise x" in str(caught.value)
