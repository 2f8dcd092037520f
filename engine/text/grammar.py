"""Structured output: what an answer must look like, as the tokens that may come next (llguidance).

Loaded on first use: importing it and building its view of the vocabulary takes more time than a node has to start.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import llguidance
import orjson

from edgeproxy.protocol.openai.checks import Json
from edgeproxy.protocol.openai.formats import Format
from engine.constraint import only
from engine.step import Finish
from engine.text.reasons import reason
from engine.text.recursion import check_ends
from engine.text.schema import exact
from engine.text.tokenizer import Tokenizer

CACHED: Final = 32
"""Grammars that are kept compiled; of each at most MAX_CHARS."""
MAX_CHARS: Final = 1 << 17
_LAYOUT: Final[llguidance._lib.JsonCompileOptions] = {
    # One way to write a value: a small model that may put in white space does little else.
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "lenient": False,
}
MAX_LEXER_STATES: Final = 50_000
MAX_GRAMMAR_SIZE: Final = 200_000


class Grammar(NamedTuple):
    """In the words of llguidance: made by the functions below."""

    text: str


def of_format(form: Format) -> Grammar:
    """Raises ValueError."""
    match form.kind:
        case "json":
            return _of_schema(orjson.loads(form.text))
        case "regex":
            return Grammar(llguidance.LLMatcher.grammar_from_regex(form.text))
        case "choice":
            return lark(f"start: {' | '.join(map(json.dumps, json.loads(form.text)))}")
        case "grammar":
            return lark(form.text)


def _of_schema(schema: Json) -> Grammar:
    check_ends(schema)
    text = orjson.dumps(exact(schema)).decode()
    try:
        return Grammar(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=_LAYOUT))
    except ValueError as error:
        raise ValueError(reason(str(error))) from error


def lark(text: str) -> Grammar:
    return Grammar(llguidance.LLMatcher.grammar_from_lark(text))


class Rules:
    """The Constraint of one sequence: what a grammar lets come next.

    Where it forces a text, the tokens are those that the tokenizer makes of all of it, as models have learnt it. So
    they are decided where the text begins, and kept: what is left of it may be spelled otherwise.
    """

    def __init__(self, matcher: llguidance.LLMatcher, vocab: int) -> None:
        self._matcher = matcher
        self._vocab = vocab
        self._ahead: tuple[int, ...] = ()
        """Forced tokens that were not accepted yet."""
        self._looked = False
        """Whether anybody asked what is forced from here on."""

    def mask(self) -> bytes | None:
        forced = self.forced(1)
        return only(forced[0], self._vocab) if forced else self._matcher.compute_bitmask()

    def forced(self, most: int) -> tuple[int, ...]:
        if not self._ahead and not self._looked:
            self._ahead = tuple(self._matcher.compute_ff_tokens())
            self._looked = True
        return self._ahead[:most]

    def accept(self, token: int) -> Finish | None:
        # Asked for of replayed tokens too, so that a node that goes on with another's answer spells it alike.
        self._ahead = self._ahead[1:] if self.forced(1) == (token,) else ()
        self._looked = False
        self._matcher.consume_token(token)
        if not self._matcher.is_stopped():
            return None
        return Finish.RULES if self._matcher.is_error() else Finish.STOP


class Grammars:
    """Compiles grammars for one vocabulary, and keeps what it has compiled. Thread-safe; works without the
    interpreter lock."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes some 0.5 s for 49,152 tokens."""
        self._words = tokenizer
        vocabulary = llguidance.TokenizerWrapper(_Vocabulary(tokenizer))
        self._tokenizer = llguidance.LLTokenizer(vocabulary, eos_token=list(tokenizer.eos_ids))
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, max_grammar_size=MAX_GRAMMAR_SIZE, verbose_errors=False
        )
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        """The one used longest ago first."""
        self._lock = threading.Lock()

    def of_format(self, form: Format) -> Callable[[], Rules]:
        """As `compiled`."""
        self.check_words(form.text)
        return self.compiled(of_format(form))

    def check_words(self, text: str) -> None:
        """Raises ValueError for characters that the model cannot write: where only they may come, nothing could."""
        if not self._words.can_say(text):
            raise ValueError("it has characters that this model has no tokens for")

    def compiled(self, grammar: Grammar) -> Callable[[], Rules]:
        """Makes the rules of each sequence. Raises ValueError saying what of the grammar cannot be followed."""
        with self._lock:
            known = self._compiled.get(grammar.text)
            if known is not None:
                self._compiled.move_to_end(grammar.text)
        matcher = known or self._compile(grammar)
        with self._lock:
            self._compiled[grammar.text] = matcher
            while len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        return lambda: Rules(matcher.deep_copy(), self._words.vocab_size)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        if len(grammar.text) > MAX_CHARS:
            raise ValueError(f"it is longer than {MAX_CHARS} characters")
        matcher = llguidance.LLMatcher(self._tokenizer, grammar.text, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(reason(matcher.get_error()))
        if not any(matcher.compute_bitmask()):
            raise ValueError("there is no text that it allows")
        if matcher.is_error():
            raise ValueError(reason(matcher.get_error()))
        return matcher


class _Vocabulary:
    """A tokenizer in the shape that llguidance asks for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [token for token in ids if tokenizer.is_control(token)]
        self.tokens = [
            tokenizer.name_of(token).encode() if tokenizer.is_control(token) else tokenizer.bytes_of(token)
            for token in ids
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode_segments([text])[0]
