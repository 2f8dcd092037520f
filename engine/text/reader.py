"""Sampled tokens to what is told of an answer: text, calls, log-probabilities."""

from __future__ import annotations

from typing import NamedTuple

from edgeproxy.protocol.openai.chat import FinishReason, TokenLogprob
from edgeproxy.protocol.openai.decoding import Decoding
from engine.step import Logprobs
from engine.text.detokenize import Detokenizer
from engine.text.logprobs import TokenLogprobs
from engine.text.stop import StopStrings
from engine.text.tokenizer import Tokenizer
from engine.text.tools.events import CallStart, Event, Parser, joined, size_of, without


class Piece(NamedTuple):
    """A part of the answer."""

    events: tuple[Event, ...]
    """Text, and where there are tools the calls, in the order in which they are told."""
    finish: FinishReason | None = None
    ids: tuple[int, ...] = ()
    """The tokens that were read for it; their text may still be held back."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens that begin in this text, where they were asked for."""

    @property
    def text(self) -> str:
        return "".join([event for event in self.events if isinstance(event, str)])

    @property
    def size(self) -> int:
        """What of it counts as sent, for who may have to resume the stream."""
        return sum(map(size_of, self.events))


class Reader:
    """Tokens to text: never half a character, nothing of a stop string or stop id, and nothing after one."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        request: Decoding,
        stop_ids: tuple[int, ...],
        skip: int = 0,
        parser: Parser | None = None,
        marks: frozenset[int] = frozenset(),
        known: int = 0,
    ) -> None:
        """`skip`: of what is told, as much as the client has got already. `parser`: where there may be calls; `marks`:
        control tokens that it must see. `known`: how many of the tokens to come are the
        prompt's: shown, but not counted."""
        self._detokenizer = Detokenizer(tokenizer, marks)
        self._stops = StopStrings(request.stop, request.stop_is_told)
        self._stop_ids = stop_ids
        self._min_tokens = request.min_tokens
        self._logprobs = None if request.top_logprobs is None else TokenLogprobs(tokenizer)
        self._skip = skip
        self._parser = parser
        self._called = False
        """A call has been told."""
        self._characters = 0
        """Of all text that tokens have completed, shown or held back."""
        self.tokens = -known
        """Read so far. Counts the token that ended the answer, but none sampled after a stop string."""

    def read(self, tokens: tuple[int, ...], logprobs: tuple[Logprobs, ...] = ()) -> Piece:
        """logprobs: of each token, where the request asks for them; of replayed ones the client has them already."""
        events = list[Event]()
        for index, token in enumerate(tokens):  # one by one: what follows the answer's end is neither shown nor counted
            self.tokens += 1
            if token in self._stop_ids:
                continue
            if self._logprobs is not None and logprobs:
                self._logprobs.push(token, logprobs[index], self._characters)
            events += self._read(self._detokenizer.push((token,)))
            if self._stops.found or (self._parser is not None and self._parser.ended):
                return self._last(events, tokens[: index + 1], "stop")
        return self._piece(events, tokens)

    def end(self, piece: Piece, finish: FinishReason) -> Piece:
        """The last piece, with what was held back."""
        last = self._last(self._read(self._detokenizer.finish()), piece.ids, finish)
        rest = self._logprobs.rest() if self._logprobs is not None and not self._stops.found else ()
        return last._replace(events=piece.events + last.events, logprobs=piece.logprobs + last.logprobs + rest)

    def _read(self, text: str) -> list[Event]:
        """What can be told of new text."""
        self._characters += len(text)
        return self._before_stop([text] if self._parser is None else self._parser.push(text))

    def _before_stop(self, events: list[Event]) -> list[Event]:
        """Stop strings are looked for in the text around calls, so that none cuts a call, and count from the first text
        after min_tokens."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, str):
                told.append(event if self.tokens <= self._min_tokens else self._stops.push(event))
            elif not self._stops.found:
                told += [self._stops.finish(), event]
                self._called = self._called or isinstance(event, CallStart)
        return told

    def _last(self, events: list[Event], ids: tuple[int, ...], finish: FinishReason) -> Piece:
        unfinished = False
        if self._parser is not None and not self._stops.found:
            events = events + self._before_stop(self._parser.finish(cut=finish == "length"))
            unfinished = self._parser.unfinished
        events = [*events, self._stops.finish()]
        finish = "stop" if self._stops.found else finish
        return self._piece(
            events, ids, "tool_calls" if finish == "stop" and self._called and not unfinished else finish
        )

    def _piece(self, events: list[Event], ids: tuple[int, ...], finish: FinishReason | None = None) -> Piece:
        shown = self._characters - self._stops.kept
        told = self._logprobs.shown(shown) if self._logprobs is not None else ()
        return Piece(self._new(joined(events)), finish, ids, told)

    def _new(self, events: list[Event]) -> tuple[Event, ...]:
        found: list[Event] = []
        for event in events:
            size = size_of(event)
            if size <= self._skip:
                self._skip -= size
                continue
            found.append(without(event, self._skip))
            self._skip = 0
        return tuple(found)
