"""The older completions on this engine: prompts as they are, without a template."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.node.resume import Resume
from edgeproxy.protocol.openai.chat import TokenLogprob
from edgeproxy.protocol.openai.completions import (
    CompletionRequest,
    TextCompletion,
    TextCompletionStream,
    completion_request,
)
from edgeproxy.protocol.openai.errors import ApiError, invalid
from engine.answer import Choices
from engine.chat import INLINE_CHARS, Chat
from engine.constraint import Constraint, only
from engine.kinds import Kind
from engine.opener import Prompt
from engine.step import Finish
from engine.text.reader import Piece


class Known:
    """The Constraint of tokens that are known: each is sampled as it is, so that its log-probability is told."""

    def __init__(self, tokens: tuple[int, ...], vocab: int) -> None:
        self._tokens = tokens
        self._vocab = vocab
        self._at = 0

    def mask(self) -> bytes | None:
        if self._at >= len(self._tokens):
            return None
        return only(self._tokens[self._at], self._vocab)

    def accept(self, token: int) -> Finish | None:
        self._at += 1
        return None

    def forced(self, most: int) -> tuple[int, ...]:
        """None: what is asked for is what the model makes of each."""
        return ()


class Completions:
    """Opens answers; shares all with chat but the template."""

    def __init__(self, chat: Chat) -> None:
        self._opener = chat.opener
        self._tokenizer = chat.tokenizer
        self._encoder = chat.encoder
        self._shapes = chat.shapes

    async def open(self, request: CompletionRequest, name: str, terms: Terms, resume: Resume | None = None) -> Choices:
        """Raises ApiError, as `Chat.open`."""
        self._opener.check(request)
        constraint = await self._shapes.of_format(request.format)
        prompts = [
            (await self._prompt(request, prompt, terms.salt, constraint))._replace(where=where)
            for prompt, where in zip(request.prompts, request.places, strict=True)
        ]
        if resume is None:
            return self._opener.choices(request, prompts, name, terms)
        if len(prompts) > 1 or not prompts[0].resumable:
            raise ApiError(
                409, "A stream of several answers, or one with its prompt, cannot be resumed.", "cannot_resume"
            )
        return self._opener.resumed(request, prompts[0], name, terms, resume)

    async def _prompt(
        self,
        request: CompletionRequest,
        prompt: str | tuple[int, ...],
        salt: bytes,
        constraint: Callable[[], Constraint | None],
    ) -> Prompt:
        ids = await self.encode(prompt, salt, whole=request.begun) if isinstance(prompt, str) else prompt
        if not ids:
            raise invalid("'prompt' is empty, and this model begins no text by itself.", "prompt", "empty_string")
        if any(token >= self._tokenizer.vocab_size for token in ids):
            raise invalid("'prompt' has a token that this model does not have.", "prompt", "invalid_value")
        if not request.echo:
            return Prompt(ids, constraint)
        text = prompt if isinstance(prompt, str) else self.decode(ids)
        if request.top_logprobs is None:
            return Prompt(ids, constraint, echo=Piece((text,)))
        return self._told_again(request, ids)

    def _told_again(self, request: CompletionRequest, ids: tuple[int, ...]) -> Prompt:
        """With the log-probabilities of the prompt: all of it but its first token is sampled."""
        ends = (*self._tokenizer.eos_ids, *request.stop_token_ids)
        if any(token in ends for token in ids[1:]):
            cause = "'echo' with logprobs takes no prompt that has a token in it that ends texts."
            raise invalid(cause, "echo", "invalid_parameter_combination")
        if request.frequency_penalty or request.presence_penalty:
            raise invalid(
                "'echo' with logprobs does not go with frequency_penalty and presence_penalty: leave one of them out.",
                "echo",
                "invalid_parameter_combination",
            )
        first, known = ids[0], ids[1:]
        raw = self._tokenizer.bytes_of(first)
        told = TokenLogprob(self._tokenizer.name_of(first), math.nan, raw)
        vocab = self._tokenizer.vocab_size
        echo = Piece((raw.decode(errors="replace"),), logprobs=(told,))
        return Prompt(ids, lambda: Known(known, vocab), known=len(known), echo=echo)

    async def encode(self, text: str, salt: bytes, *, whole: bool = True) -> tuple[int, ...]:
        """With the control tokens that it names; `whole`: with what begins every prompt. Raises ApiError 400."""
        try:
            if not whole:
                return tuple(await asyncio.to_thread(self._tokenizer.encode, text))[len(self._tokenizer.prefix) :]
            draft = self._encoder.draft(text, salt)
            return await asyncio.to_thread(draft.ids) if draft.missing_chars > INLINE_CHARS else draft.ids()
        except ValueError as error:
            raise invalid(f"{error}.", "prompt", "invalid_value") from error

    def decode(self, ids: tuple[int, ...]) -> str:
        """Control tokens by their names."""
        tokenizer = self._tokenizer
        parts = [tokenizer.name_of(i).encode() if tokenizer.is_control(i) else tokenizer.bytes_of(i) for i in ids]
        return b"".join(parts).decode(errors="replace")


async def _open(chat: Chat, request: Any, name: str, terms: Terms, resume: Resume | None) -> Choices:
    return await Completions(chat).open(request, name, terms, resume)


COMPLETIONS: Final = Kind("cmpl", completion_request, _open, TextCompletion, TextCompletionStream)
