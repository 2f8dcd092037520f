from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenize import Detokenizer
from engine.text.tokenizer import Tokenizer

IDS = st.lists(st.one_of(st.integers(0, 49_151), st.integers(100, 300)), max_size=40)
"""The low ids are single bytes, so that broken and cut characters are common."""

CHARACTERS = st.characters(min_codepoint=32, max_codepoint=0x2FFFF, exclude_categories=["Cs"], exclude_characters="<")
"""Those that the vocabulary can spell, and no control tokens."""


def whole(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.bytes_of, ids)).decode(errors="replace")


@given(ids=IDS, cuts=st.lists(st.integers(0, 40)))
def test_any_split_gives_the_text_of_the_whole(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [ids[start:end] for start, end in pairwise([0, *sorted(cuts), len(ids) + 40])]
    text = "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.finish()
    assert text == whole(tokenizer, ids)


@given(text=st.text(CHARACTERS, max_size=40))
def test_never_cuts_a_character_and_holds_at_most_three_bytes(tokenizer: Tokenizer, text: str) -> None:
    detokenizer, shown, seen = Detokenizer(tokenizer), "", b""
    for token in tokenizer.encode(text):
        shown += detokenizer.push([token])
        seen += tokenizer.bytes_of(token)
        assert text.startswith(shown)
        assert len(seen) - len(shown.encode()) <= 3
    assert detokenizer.finish() == ""
    assert shown == text


def test_an_unfinished_character_becomes_a_replacement_character_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🜲")
    assert len(ids) > 2
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids[:-1]) == "a"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.push(tokenizer.encode("b")) == "b"


def test_control_tokens_add_nothing(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([1, *tokenizer.encode("hi"), 2, 0]) + detokenizer.finish() == "hi"
