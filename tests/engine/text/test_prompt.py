"""Whatever is remembered, a prompt's ids are those of the tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.prompt import LEAST_CHARS, PromptEncoder
from engine.text.tokenizer import Tokenizer
from tests.engine.text.test_tokenizer import CORPUS

LONG = "What was said before is said again, and again in every turn of a chat. "
SPECIAL = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start|",
    "im_end|>",
    "<|",
    "<",
    "<<|im_end|>>",
    "<repo_name>",
]
PIECES = st.one_of(
    st.sampled_from(SPECIAL), st.sampled_from([text for text in CORPUS if text]), st.just(LONG), st.text(max_size=20)
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), room=st.sampled_from([0, 100, 1 << 20]))
def test_remembered_and_forgotten_segments_change_nothing(tokenizer: Tokenizer, texts: list[str], room: int) -> None:
    encoder = PromptEncoder(tokenizer, memory_chars=room)
    for text in [*texts, *texts]:
        assert list(encoder.draft(text, b"").ids()) == tokenizer.encode(text)


def test_what_was_encoded_once_is_known_to_its_tenant_alone(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer)
    text = f"<|im_start|>system\n{LONG}<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    first = encoder.draft(text, b"a")
    first.ids()
    again, other = encoder.draft(text, b"a"), encoder.draft(text, b"b")
    assert first.missing_chars == other.missing_chars > len(LONG)
    assert again.missing_chars == first.missing_chars - len(f"system\n{LONG}")


def test_memory_is_bounded_and_forgets_what_was_used_longest_ago(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, memory_chars=2 * LEAST_CHARS)
    texts = [letter * LEAST_CHARS for letter in "abc"]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        encoder.draft(text, b"").ids()
    assert [encoder.draft(text, b"").missing_chars for text in texts] == [0, LEAST_CHARS, 0]


def test_a_segment_larger_than_the_memory_is_not_kept(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, memory_chars=LEAST_CHARS)
    for text in ("a" * LEAST_CHARS, "b" * (LEAST_CHARS + 1)):
        encoder.draft(text, b"").ids()
    assert encoder.draft("a" * LEAST_CHARS, b"").missing_chars == 0


def test_a_lone_surrogate_is_a_value_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        PromptEncoder(tokenizer).draft("\ud800" * 100, b"").ids()
