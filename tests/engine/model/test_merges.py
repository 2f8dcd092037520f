from __future__ import annotations

from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.merges import ASCII, NONE, Merges
from engine.model.vocabulary import Texts

TOKENS = ("a", "b", "ab", "aba", "Ġ", "é", "aa")
LEFT, RIGHT = (0, 2, 0, 1), (1, 0, 0, 1)
"""a b, ab a, a a; and b b, which makes no token."""


def test_a_pair_is_found_with_its_rank_and_what_it_makes() -> None:
    merges = Merges.of(TOKENS, LEFT, RIGHT)
    for rank, (left, right, made) in enumerate(zip(LEFT, RIGHT, (2, 3, 6, NONE), strict=True)):
        at = merges.find(left, right)
        assert at is not None
        assert (merges.ranks[at], merges.made[at]) == (rank, made)
    assert list(merges.pairs) == sorted(merges.pairs)
    for left in range(len(TOKENS)):
        for right in range(len(TOKENS)):
            assert (merges.find(left, right) is None) == ((left, right) not in zip(LEFT, RIGHT, strict=True))


def test_letters_are_the_tokens_of_single_bytes() -> None:
    letters = Merges.of(TOKENS, LEFT, RIGHT).letters
    assert (letters[ord("a")], letters[ord("b")], letters[ord(" ")], letters[ord("c")]) == (0, 1, 4, NONE)
    assert len(letters) == ASCII


def test_it_is_read_as_it_was_written_and_in_no_other_length() -> None:
    merges = Merges.of(TOKENS, LEFT, RIGHT)
    data = merges.to_bytes()
    assert Merges.from_bytes(data) == merges
    for wrong in (b"", data[:-1], data[:-8], data + b"\0", data[: 4 * ASCII - 4]):
        with pytest.raises(ValueError, match=f"has {len(wrong)} bytes"):
            Merges.from_bytes(wrong)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=8))
def test_texts_are_a_sequence_of_what_they_were_made_of(texts: list[str]) -> None:
    raw = [text.encode() for text in texts]
    found = Texts(b"".join(raw), array("I", accumulate(map(len, raw))))
    assert list(found) == texts
    assert [found[at] for at in range(len(texts))] == texts
    assert [found[at - len(texts)] for at in range(len(texts))] == texts
    assert found[1:3] == tuple(texts[1:3])
    for outside in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            found[outside]
