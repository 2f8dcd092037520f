"""What a tokenizer and a chat template are made from, as a GGUF file states it and as an image keeps it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, overload

from engine.model.gguf import Gguf, GgufError
from engine.model.merges import Merges

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""GGUF's token types. The last two are matched in the text as a whole; control tokens are never shown."""

_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


class Texts(Sequence[str]):
    """Many short texts as an image keeps them: 49,152 strings take a start longer to make than to do without."""

    def __init__(self, content: bytes, ends: array[int]) -> None:
        """content: all of them in UTF-8, one after the other; ends: where each one does."""
        self._content = content
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...
    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(self[index] for index in range(*at.indices(len(self))))
        end = self._ends[at]
        start = self._ends[at - 1] if at % len(self._ends) else 0
        return self._content[start:end].decode(errors="replace")

    def __iter__(self) -> Iterator[str]:
        start = 0
        for end in self._ends:
            yield self._content[start:end].decode(errors="replace")
            start = end


class Vocabulary(NamedTuple):
    """A byte-level BPE: what GGUF calls `gpt2`, with the pre-tokenizer `smollm`."""

    tokens: Sequence[str]
    types: bytes
    """GGUF's type of each token."""
    left: array[int]
    right: array[int]
    """Merges in order of rank: ids of the two tokens that become one."""
    merges: Merges
    """The same, to be looked up."""
    end_ids: frozenset[int]
    """Ids that the file says end a turn."""
    bos_id: int | None
    add_bos: bool

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> Vocabulary:
        """Raises GgufError for another kind of tokenizer and for a vocabulary that cannot be used."""
        _expect(gguf, "model", "gpt2")
        _expect(gguf, "pre", "smollm")
        tokens = _strings(gguf, "tokens")
        types = gguf.metadata.get("tokenizer.ggml.token_type", ())
        if len(types) != len(tokens):
            raise _error(gguf, f"{len(types)} token types for {len(tokens)} tokens")
        left, right = _merges(gguf, tokens)
        ends = (_token_id(gguf, key, len(tokens)) for key in _END_KEYS)
        return cls(
            tokens,
            bytes(kind if 0 <= kind < 256 else 0 for kind in types),
            left,
            right,
            Merges.of(tokens, left, right),
            frozenset(token for token in ends if token is not None),
            _token_id(gguf, "bos_token_id", len(tokens)),
            gguf.metadata.get("tokenizer.ggml.add_bos_token", False) is True,
        )


class TemplateText(NamedTuple):
    """A chat template's source, and the two tokens it may name."""

    source: str
    bos_token: str
    eos_token: str

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> TemplateText:
        """Raises GgufError where the file has no template."""
        source = gguf.metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise GgufError(f"{gguf.path}: there is no chat template; use an instruction-tuned model")
        return cls(source, _token(gguf, "bos"), _token(gguf, "eos"))


def _merges(gguf: Gguf, tokens: tuple[str, ...]) -> tuple[array[int], array[int]]:
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise _error(gguf, "a token appears twice in the vocabulary")
    left, right = array("I"), array("I")
    for merge in _strings(gguf, "merges"):
        first, _, then = merge.partition(" ")
        if first not in ids or then not in ids or first + then not in ids:
            raise _error(gguf, f"the merges do not fit the vocabulary: {merge[:80]!r} names a token that is not there")
        left.append(ids[first])
        right.append(ids[then])
    return left, right


def _expect(gguf: Gguf, key: str, value: str) -> None:
    found = gguf.metadata.get(f"tokenizer.ggml.{key}")
    if found != value:
        raise _error(gguf, f"tokenizer.ggml.{key} is {found!r}, this engine reads {value!r}")


def _strings(gguf: Gguf, key: str) -> tuple[str, ...]:
    found: Any = gguf.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, tuple) or not found or not isinstance(found[0], str):
        raise _error(gguf, f"tokenizer.ggml.{key} is not a list of strings")
    return found


def _token_id(gguf: Gguf, key: str, vocabulary: int) -> int | None:
    found = gguf.metadata.get(f"tokenizer.ggml.{key}")
    if found is None or (isinstance(found, int) and 0 <= found < vocabulary):
        return found
    raise _error(gguf, f"tokenizer.ggml.{key} is {found!r}, no token of {vocabulary}")


def _token(gguf: Gguf, which: str) -> str:
    index = gguf.metadata.get(f"tokenizer.ggml.{which}_token_id")
    tokens = gguf.metadata.get("tokenizer.ggml.tokens", ())
    return str(tokens[index]) if isinstance(index, int) and 0 <= index < len(tokens) else ""


def _error(gguf: Gguf, what: str) -> GgufError:
    return GgufError(f"{gguf.path}: {what}; use a SmolLM model in GGUF form or convert it again")
