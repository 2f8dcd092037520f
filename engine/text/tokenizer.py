"""Byte-level BPE built from a model's vocabulary and merges."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from engine.model.gguf import Gguf, GgufError
from engine.model.merges import byte_alphabet
from engine.model.vocabulary import CONTROL, USER_DEFINED, Vocabulary
from engine.text.plain import PlainBpe

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Bpe

_END_NAMES: Final = frozenset({"<|endoftext|>", "<|im_end|>", "<|eot_id|>"})
"""Control tokens that end a turn in every model that has them, whether or not the file says so."""


class Tokenizer:
    """Text to ids and ids to bytes.

    `encode` recognises the text of special tokens, since a rendered chat template consists of them; `encode_segments`
    does not recognise control tokens. Who renders what users wrote keeps both apart with `engine.text.guard`.

    Thread-safe.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises ValueError for merges that the library refuses."""
        tokens = vocabulary.tokens
        self.vocab_size = len(tokens)
        self.bos_id = vocabulary.bos_id
        self._tokens = tokens
        self._control = _of_type(vocabulary, CONTROL)
        self._user_defined = _of_type(vocabulary, USER_DEFINED)
        ends = {token for token in self._control if tokens[token] in _END_NAMES}
        self.eos_ids = tuple(sorted(vocabulary.end_ids | ends))
        """Ids that end a turn when sampled."""
        self.controls = tuple(sorted(self._control))
        self.control_names = tuple(tokens[i] for i in self.controls)
        self._special_ids = {tokens[i]: i for i in sorted(self._control | self._user_defined)}
        longest_first = sorted(filter(None, self._special_ids), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self.prefix = [vocabulary.bos_id] if vocabulary.add_bos and vocabulary.bos_id is not None else []
        """What begins every prompt."""
        self._byte_of = byte_alphabet()
        self._vocabulary: Vocabulary | None = vocabulary
        self._plain = None if self._user_defined else PlainBpe(vocabulary.merges)
        """Until the library's is there. It knows no tokens that are matched as a whole."""
        self._whole: Bpe | None = None
        self._lock = threading.Lock()
        self._bytes: list[bytes | None] = [None] * len(tokens)

    @classmethod
    def from_gguf(cls, gguf: Gguf) -> Tokenizer:
        """Raises GgufError for another kind of tokenizer and for a vocabulary that cannot be used."""
        try:
            return cls(Vocabulary.from_gguf(gguf))
        except GgufError:
            raise
        except ValueError as error:
            raise GgufError(f"{gguf.path}: {error}; convert the model again") from error

    @property
    def prepared(self) -> bool:
        """The library's tokenizer is there."""
        return self._whole is not None

    def prepare(self) -> None:
        """Makes the library's tokenizer, which else the first text makes that is long or not ASCII.

        Takes a tenth of a second, for most of which it holds the interpreter.
        """
        with self._lock:
            if self._vocabulary is None:
                return
            self._whole = _bpe(self._vocabulary, self._control, self._user_defined)
            self._plain = self._vocabulary = None

    def encode(self, text: str) -> list[int]:
        """Works without the interpreter lock, so in a thread it stops nobody. Raises ValueError for lone surrogates.

        Bytes that the vocabulary has no token for (SmolLM2: some control characters and planes of Unicode without
        characters) are left out, as the model's own tokenizer does.
        """
        segments = self.segments(text)
        encoded = iter(self.encode_segments([segment for segment in segments if isinstance(segment, str)]))
        ids = [i for segment in segments for i in ([segment] if isinstance(segment, int) else next(encoded))]
        return ids if ids[: len(self.prefix)] == self.prefix else self.prefix + ids

    def encode_segments(self, segments: list[str]) -> list[list[int]]:
        """Each text for itself, without the token that begins a prompt; names of control tokens are text too."""
        plain = self._plain
        if plain is not None and plain.takes(segments):
            return [plain.encode(text) for text in segments]
        self.prepare()
        assert self._whole is not None
        try:
            # Of the library's calls only those on batches release the lock.
            return [found.ids for found in self._whole.encode_batch_fast(segments, add_special_tokens=False)]
        except TypeError as error:
            raise ValueError("the text has a surrogate without its partner and cannot be encoded as UTF-8") from error

    def can_say(self, text: str) -> bool:
        """Whether there are tokens for all of it. Raises ValueError for lone surrogates."""
        (ids,) = self.encode_segments([text])
        return b"".join(map(self.bytes_of, ids)) == text.encode()

    def segments(self, text: str) -> list[str | int]:
        """The special tokens of a text, as ids, and the texts between them, none of which is empty.

        Of those that begin first the longest. No merge crosses them, so that the ids of a text are those of its
        segments, one after the other.
        """
        found: list[str | int] = []
        for index, part in enumerate(self._special.split(text)):
            if index % 2:
                found.append(self._special_ids[part])
            elif part:
                found.append(part)
        return found

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text; nothing for control tokens. May be a part of a UTF-8 character."""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._spelled(token)
        return known

    def name_of(self, token: int) -> str:
        """As people read it: its text, with U+FFFD for parts of a character, and for a control token its name."""
        return self._tokens[token] if token in self._control else self.bytes_of(token).decode(errors="replace")

    def is_control(self, token: int) -> bool:
        return token in self._control

    def _spelled(self, token: int) -> bytes:
        if token in self._control:
            return b""
        text = self._tokens[token]
        if token in self._user_defined:
            return text.encode()
        return b"".join(self._byte_of.get(char) or char.encode() for char in text)


def _of_type(vocabulary: Vocabulary, kind: int) -> frozenset[int]:
    found = []
    at = vocabulary.types.find(kind)
    while at >= 0:
        found.append(at)
        at = vocabulary.types.find(kind, at + 1)
    return frozenset(found)


def _bpe(vocabulary: Vocabulary, control: Iterable[int], user_defined: Iterable[int]) -> Bpe:
    """Digits one by one, then GPT-2's pattern: what llama.cpp calls `smollm`."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    tokens = vocabulary.tokens
    pairs = list(zip(_spelled(tokens, vocabulary.left), _spelled(tokens, vocabulary.right), strict=True))
    try:
        bpe = Tokenizer(models.BPE(dict(zip(tokens, range(len(tokens)), strict=True)), pairs))
    except Exception as error:  # the library raises a plain Exception
        raise ValueError(f"the merges do not fit the vocabulary: {error}") from error
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for whole, special in ((control, True), (user_defined, False)):
        bpe.add_tokens([AddedToken(tokens[i], special=special, normalized=False) for i in sorted(whole)])
    bpe.encode_special_tokens = True  # `segments` finds them: in any other text they are text
    return bpe


def _spelled(tokens: Sequence[str], ids: Sequence[int]) -> Iterable[str]:
    return map(tokens.__getitem__, ids)
