"""Byte-level BPE built from a GGUF file's vocabulary and merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as Bpe

from engine.model.gguf import Gguf, GgufError

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF's token types that are matched in the text as a whole. Control tokens are never shown."""

_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_NAMES: Final = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>"})
"""Control tokens that end a turn in every model that has them, whether or not the file says so."""


class Tokenizer:
    """Text to ids and ids to bytes.

    `encode` recognises the text of special tokens, since a rendered chat template consists of them. It cannot tell a
    template's `<|im_end|>` from one that a user wrote: a caller who must keep them apart has to take them out of the
    user's text before rendering.

    Thread-safe.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        *,
        control: frozenset[int],
        user_defined: frozenset[int] = frozenset(),
        end_ids: frozenset[int] = frozenset(),
        bos_id: int | None = None,
        add_bos: bool = False,
    ) -> None:
        """Raises ValueError for a token that appears twice and for a merge that names no two tokens."""
        self.vocab_size = len(tokens)
        self.bos_id = bos_id
        self.eos_ids = tuple(sorted(end_ids | {token for token in control if tokens[token] in _END_NAMES}))
        """Ids that end a turn when sampled."""
        self._tokens = tokens
        self._control = control
        self._user_defined = user_defined
        self._bpe = _bpe(tokens, merges)
        for whole, special in ((control, True), (user_defined, False)):
            self._bpe.add_tokens([AddedToken(tokens[i], special=special, normalized=False) for i in sorted(whole)])
        self._prefix = [bos_id] if add_bos and bos_id is not None else []
        self._byte_of = _byte_alphabet()
        self._bytes: list[bytes | None] = [None] * len(tokens)

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> Tokenizer:
        """Raises GgufError for another kind of tokenizer and for a vocabulary that cannot be used."""
        _expect(gguf, "model", "gpt2")
        _expect(gguf, "pre", "smollm")
        tokens = _strings(gguf, "tokens")
        types = gguf.metadata.get("tokenizer.ggml.token_type", ())
        if len(types) != len(tokens):
            raise _error(gguf, f"{len(types)} token types for {len(tokens)} tokens")
        ends = (_token_id(gguf, key, len(tokens)) for key in _END_KEYS)
        try:
            return cls(
                tokens,
                _strings(gguf, "merges"),
                control=frozenset(i for i, kind in enumerate(types) if kind == _CONTROL),
                user_defined=frozenset(i for i, kind in enumerate(types) if kind == _USER_DEFINED),
                end_ids=frozenset(token for token in ends if token is not None),
                bos_id=_token_id(gguf, "bos_token_id", len(tokens)),
                add_bos=gguf.metadata.get("tokenizer.ggml.add_bos_token", False) is True,
            )
        except GgufError:
            raise
        except ValueError as error:
            raise _error(gguf, str(error)) from error

    def encode(self, text: str) -> list[int]:
        """Works without the interpreter lock, so in a thread it stops nobody. Raises ValueError for lone surrogates.

        Bytes that the vocabulary has no token for (SmolLM2: some control characters and planes of Unicode without
        characters) are left out, as the model's own tokenizer does.
        """
        try:
            # Of the library's calls only those on batches release the lock.
            ids: list[int] = self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise ValueError("the text has a surrogate without its partner and cannot be encoded as UTF-8") from error
        return ids if ids[:1] == self._prefix else self._prefix + ids

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text; nothing for control tokens. May be a part of a UTF-8 character."""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._spelled(token)
        return known

    def _spelled(self, token: int) -> bytes:
        if token in self._control:
            return b""
        text = self._tokens[token]
        if token in self._user_defined:
            return text.encode()
        return b"".join(self._byte_of.get(char) or char.encode() for char in text)


def _bpe(tokens: Sequence[str], merges: Sequence[str]) -> Bpe:
    """Digits one by one, then GPT-2's pattern: what llama.cpp calls `smollm`."""
    vocabulary = {text: token for token, text in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ValueError("a token appears twice in the vocabulary")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        bpe = Bpe(models.BPE(vocabulary, pairs))
    except Exception as error:  # the library raises a plain Exception
        raise ValueError(f"the merges do not fit the vocabulary: {error}") from error
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return bpe


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's printable stand-ins: a printable Latin-1 byte is itself, the others are numbered from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + index): bytes([byte]) for index, byte in enumerate(others)}


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


def _error(gguf: Gguf, what: str) -> GgufError:
    return GgufError(f"{gguf.path}: {what}; use a SmolLM model in GGUF form or convert it again")
