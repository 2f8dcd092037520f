"""The log-probabilities of tokens, told with the text that the tokens made."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edgeproxy.protocol.openai.chat import TokenLogprob
from engine.step import Logprobs
from engine.text.detokenize import Detokenizer
from engine.text.tokenizer import Tokenizer


class TokenLogprobs:
    """Holds a token back until the text is shown in which it begins.

    So a character that several tokens make up comes with all of them, and of tokens behind a stop string nothing is
    told. A token without text of its own goes with the text behind it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._held: deque[tuple[int, TokenLogprob]] = deque()
        """With the number of characters before each."""

    def push(self, token: int, logprobs: Logprobs, before: int) -> None:
        """before: how many characters of the whole text all earlier tokens have completed."""
        top = tuple(self._entry(other, value) for other, value in logprobs.top)
        self._held.append((before, self._entry(token, logprobs.sampled, top)))

    def shown(self, characters: int) -> tuple[TokenLogprob, ...]:
        """So many characters are out in all: the tokens that begin in the text up to there, and were not told."""
        told = []
        while self._held and self._held[0][0] < characters:
            told.append(self._held.popleft()[1])
        return tuple(told)

    def rest(self) -> tuple[TokenLogprob, ...]:
        """The answer has ended: those that are left."""
        told = tuple(entry for _, entry in self._held)
        self._held.clear()
        return told

    def _entry(self, token: int, value: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        raw = None if self._tokenizer.is_control(token) else self._tokenizer.bytes_of(token)
        return TokenLogprob(self._tokenizer.name_of(token), value, raw, top)


def told(tokenizer: Tokenizer, ids: Sequence[int], characters: int) -> int:
    """Of how many tokens the log-probabilities went out with the first `characters` of their text."""
    detokenizer, before = Detokenizer(tokenizer), 0
    for index, token in enumerate(ids):
        if before >= characters:
            return index
        before += len(detokenizer.push((token,)))
    return len(ids)
