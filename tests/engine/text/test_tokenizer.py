from __future__ import annotations

import threading
import time
import warnings
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.gguf import Gguf, GgufError
from engine.model.merges import Merges
from engine.model.vocabulary import USER_DEFINED, Vocabulary
from engine.text.plain import MOST_CHARS
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer

CAPITAL_OF_FRANCE = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407]
CAPITAL_OF_FRANCE += [19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
"""What llama.cpp makes of the rendered chat."""

CORPUS = [
    "",
    " ",
    "a",
    "  two  spaces  ",
    "tab\there\r\nand\n\n\nlines\n",
    "trailing space ",
    "\n",
    " \n \n",
    "I'm you're he'll WE'VE it's'd 'tis",
    "0 1 12 123 1234567890 3.14159 1,000,000 -7e-10 x1y22z333",
    "١٢٣ ४५६ Ⅷ ½ ² \U0001d7d8\U0001d7d9 ⑩",
    "def f(x):\n    return x ** 2  # square\n\n\tpass",
    '{"key": [1, 2.5, null], "nested": {"a": "b"}}',
    "Ünïcödé naïve façade Zoë",
    "日本語のテキスト、中文字符。한국어",
    "العربية עברית हिन्दी ไทย",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji",
    "a\u0301 e\u0301 \u200b\u200d\ufeff zero width",
    "\u00a0\u2003\u3000 odd spaces \u2028\u2029",
    "\0\x01\x7f\x80 controls",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "<|im_start |> <| im_end|> <|im_start|",
    "http://example.org/a?b=c&d=%20#e",
    "!!!???...---***((([[[{{{",
    "ĠĊ Ā",
    "supercalifragilisticexpialidocious" * 20,
    " " * 500,
    "ab" * 1000,
]

UNLIKE_LLAMA_CPP = r"[^\P{N}0-9]"
"""Digits other than ASCII, which transformers does not part when it reads a GGUF; llama.cpp does, and so do we."""


class PlainBpe:
    """Byte-level BPE by the book (Sennrich et al., arXiv:1508.07909), with llama.cpp's patterns for `smollm`."""

    def __init__(self, gguf: Gguf) -> None:
        tokens = gguf.metadata["tokenizer.ggml.tokens"]
        types = gguf.metadata["tokenizer.ggml.token_type"]
        self.ids = {text: token for token, text in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ")): rank for rank, m in enumerate(gguf.metadata["tokenizer.ggml.merges"])}
        control = [text for text, kind in zip(tokens, types, strict=True) if kind == 3]
        self.control = regex.compile("(" + "|".join(regex.escape(text) for text in control) + ")")
        self.words = regex.compile(
            r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N}|$)|\s+(?!\S)|\s+"
        )
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        self.letters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}

    def encode(self, text: str) -> list[int]:
        found: list[int] = []
        for index, part in enumerate(self.control.split(text)):
            found += [self.ids[part]] if index % 2 else [i for w in self.words.findall(part) for i in self.word(w)]
        return found

    def word(self, word: str) -> Iterator[int]:
        parts = [letter for letter in map(self.letters.__getitem__, word.encode()) if letter in self.ids]
        while len(parts) > 1:
            rank, at = min((self.ranks.get(pair, 1 << 30), at) for at, pair in enumerate(pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return (self.ids[part] for part in parts)


@pytest.fixture(scope="module")
def plain(gguf: Gguf) -> PlainBpe:
    return PlainBpe(gguf)


@pytest.fixture(scope="module")
def theirs(model_path: Path) -> Any:
    """transformers' tokenizer, made from the same file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(model_path.parent, gguf_file=model_path.name)


@pytest.fixture(scope="module")
def first(gguf: Gguf) -> Tokenizer:
    """As it is until the library's is there."""
    return Tokenizer.from_gguf(gguf)


def test_the_chat_of_the_golden_prompt_is_llama_cpps(tokenizer: Tokenizer, chat_template: ChatTemplate) -> None:
    text = chat_template.render([{"role": "user", "content": "What is the capital of France?"}])
    assert tokenizer.encode(text) == CAPITAL_OF_FRANCE


def test_knows_the_models_special_ids(tokenizer: Tokenizer) -> None:
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, (0, 2))


def test_equals_transformers_on_a_broad_corpus(tokenizer: Tokenizer, theirs: Any) -> None:
    texts = [text for text in CORPUS if not regex.search(UNLIKE_LLAMA_CPP, text)]
    assert len(texts) > 20
    for text in texts:
        assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False), text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_equals_transformers_on_any_text(tokenizer: Tokenizer, theirs: Any, text: str) -> None:
    text = regex.sub(UNLIKE_LLAMA_CPP, "", text)
    assert tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_equals_plain_bpe_on_a_broad_corpus(tokenizer: Tokenizer, plain: PlainBpe) -> None:
    for text in CORPUS:
        assert tokenizer.encode(text) == plain.encode(text), text


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=60),
        st.text(alphabet=" \n\t\r'slt1290aéÀ日٣½😀.,<|im_end>\u00a0", max_size=60),
        st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", " ", "a", "1", "<repo_name>"]), max_size=12).map(
            "".join
        ),
    )
)
def test_equals_plain_bpe_on_any_text(tokenizer: Tokenizer, plain: PlainBpe, text: str) -> None:
    assert tokenizer.encode(text) == plain.encode(text)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=80))
def test_the_bytes_of_the_ids_are_the_text_less_what_has_no_token(
    tokenizer: Tokenizer, plain: PlainBpe, text: str
) -> None:
    known = bytes(byte for byte in text.encode() if plain.letters[byte] in plain.ids)
    assert b"".join(map(tokenizer.bytes_of, tokenizer.encode(text))) == known


def test_every_token_has_bytes_and_control_tokens_have_none(tokenizer: Tokenizer, theirs: Any) -> None:
    silent = [token for token in range(tokenizer.vocab_size) if not tokenizer.bytes_of(token)]
    assert silent == list(range(17))
    for token in range(17, tokenizer.vocab_size, 97):
        assert tokenizer.bytes_of(token).decode(errors="replace") == theirs.decode([token])


def test_a_lone_surrogate_is_a_value_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_other_threads_go_on_while_a_long_text_is_encoded(tokenizer: Tokenizer) -> None:
    begun, done = threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode("hello world, this is a text. " * 40_000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    turns = 0
    while not done.is_set():
        turns += 1
        time.sleep(0)
    thread.join()
    assert turns > 10


@settings(max_examples=150, deadline=None)
@given(
    text=st.one_of(
        st.text(st.characters(max_codepoint=127), max_size=60),
        st.text(alphabet=" \n\t\r\x0b\x1c'slt1290ab.,<|im_end>", max_size=60),
    )
)
def test_the_first_texts_have_the_ids_that_they_have_later(first: Tokenizer, tokenizer: Tokenizer, text: str) -> None:
    tokenizer.prepare()
    assert first.encode(text) == tokenizer.encode(text)
    assert first.encode_segments([text]) == tokenizer.encode_segments([text])


def test_a_first_text_that_is_long_or_not_ascii_has_the_library_made(gguf: Gguf, tokenizer: Tokenizer) -> None:
    for text in ("naïve", "word " * MOST_CHARS):
        new = Tokenizer.from_gguf(gguf)
        assert new.encode("Hello!") == tokenizer.encode("Hello!")
        assert not new.prepared
        assert new.encode(text) == tokenizer.encode(text)
        assert new.prepared


def small(*, add_bos: bool = False, types: Sequence[int] = (3, 3, 1, 1, 1, 1, 1)) -> Tokenizer:
    tokens = ("<s>", "</s>", "a", "b", "ab", "<x y>", "Ġ")
    left, right = array("I", [2]), array("I", [3])
    merges = Merges.of(tokens, left, right)
    return Tokenizer(Vocabulary(tokens, bytes(types), left, right, merges, frozenset({1}), 0, add_bos))


def test_a_bos_token_is_put_first_only_where_the_file_says_so() -> None:
    assert small().encode("ab") == [4]
    assert small(add_bos=True).encode("ab") == [0, 4]
    assert small(add_bos=True).encode("<s>ab") == [0, 4]
    assert small(add_bos=True).encode("") == [0]


def test_a_user_defined_token_is_matched_whole_and_shown() -> None:
    tokenizer = small(types=(3, 3, 1, 1, 1, USER_DEFINED, 1))
    ids = tokenizer.encode("a<x y>b b")
    assert ids == [2, 5, 3, 6, 3]
    assert b"".join(map(tokenizer.bytes_of, ids)) == b"a<x y>b b"


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("model", "llama", "tokenizer.ggml.model is 'llama'"),
        ("pre", "llama-bpe", "tokenizer.ggml.pre is 'llama-bpe'"),
        ("tokens", None, "tokenizer.ggml.tokens is not a list of strings"),
        ("tokens", (), "tokenizer.ggml.tokens is not a list of strings"),
        ("merges", (1, 2), "tokenizer.ggml.merges is not a list of strings"),
        ("token_type", (), "0 token types for 49152 tokens"),
        ("eos_token_id", 49152, "tokenizer.ggml.eos_token_id is 49152"),
        ("bos_token_id", -1, "tokenizer.ggml.bos_token_id is -1"),
        ("merges", ("no token",), "the merges do not fit the vocabulary"),
        ("merges", ("alone",), "the merges do not fit the vocabulary"),
        ("tokens", ("a",) * 49152, "a token appears twice"),
    ],
)
def test_an_unusable_vocabulary_is_refused(gguf: Gguf, key: str, value: Any, part: str) -> None:
    broken = replace(gguf, metadata={**gguf.metadata, f"tokenizer.ggml.{key}": value})
    with pytest.raises(GgufError) as caught:
        Tokenizer.from_gguf(broken)
    assert part in str(caught.value)
    assert str(gguf.path) in str(caught.value)
    assert "; use a SmolLM model" in str(caught.value)
