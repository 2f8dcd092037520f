from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.text.detokenize import Detokenizer
from engine.text.tokenizer import Tokenizer

IDS = st.lists(st.one_of(st.integers(0, 49_151), st.integers(100, 300)), max_size=40)
"""The low ids are single bytes, so that broken and cut characters are common."""


def whole(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.bytes_of, ids)).decode(errors="replace")


@given(ids=IDS, data=st.data())
def test_any_split_gives_the_text_of_the_whole(tokenizer: Tokenizer, ids: list[int], data: st.DataObject) -> None:
    detokenizer, text, at = Detokenizer(tokenizer), "", 0
    while at < len(ids):
        count = data.draw(st.integers(0, len(ids) - at))
        text += detokenizer.push(ids[at : at + count])
        at += max(count, 1) if count else 0
        if not count:
            text += detokenizer.push(ids[at : at + 1])
            at += 1
    assert text + detokenizer.finish() == whole(tokenizer, ids)


@given(
    text=st.text(
        alphabet=st.characters(min_codepoint=32, max_codepoint=0x2FFFF, exclude_categories=["Cs"]), max_size=40
    )
)
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
