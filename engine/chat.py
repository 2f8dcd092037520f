"""A chat request on this engine: messages to tokens, tokens to pieces of text."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from edgeproxy.protocol.node.blocks import Prefix
from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.openai.chat import FinishReason, Usage
from edgeproxy.protocol.openai.errors import ApiError, invalid
from edgeproxy.protocol.openai.schema import ChatRequest
from engine import admission
from engine.loop import EngineLoop, Generation
from engine.sequence import Delta, GenerationRequest, Timing
from engine.step import Finish, Sampling
from engine.text.detokenize import Detokenizer
from engine.text.stop import StopStrings
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer

INLINE_CHARS = 2000
"""Longer prompts are rendered and encoded in a thread, so that the event loop goes on."""
DEFAULT_MAX_TOKENS = 1024
"""Where the client names none. Memory is reserved for all of them, so the model's whole context would be too dear."""
LEAST_TOP_P = 2.0**-24
"""top_p 0 means the likeliest token alone."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer."""

    text: str
    finish: FinishReason | None = None


class Answer:
    """One generation as text. `next` until a piece has a finish reason; `abort` at any time."""

    def __init__(
        self, generation: Generation, detokenizer: Detokenizer, stops: tuple[str, ...], prompt_tokens: int
    ) -> None:
        self._generation = generation
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._cached = 0
        self.submitted = generation.submitted
        """When the engine got it: monotonic clock, seconds."""
        self.timing: Timing | None = None
        """Known from the first piece on."""
        self.prefix: Prefix | None = None
        """The prompt's full blocks, known at the same time."""

    async def next(self) -> Piece:
        """The next piece with text or a finish reason.

        Raises ApiError where the engine refused the request, failed at it, or was told to abort it.
        """
        while True:
            delta = await self._generation.next()
            if delta.timing is not None:
                self.timing, self._cached, self.prefix = delta.timing, delta.cached, delta.prefix
            piece = self._read(delta)
            if piece.text or piece.finish:
                return piece

    def abort(self) -> None:
        self._generation.abort()

    def usage(self) -> Usage:
        """So far. Counts the token that ended the answer, but none sampled after a stop string."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached)

    def _read(self, delta: Delta) -> Piece:
        text = ""
        for token in delta.tokens:  # one by one: what follows a stop string is neither shown nor counted
            self._completion_tokens += 1
            text += self._stops.push(self._detokenizer.push((token,)))
            if self._stops.found:
                self.abort()
                return Piece(text, "stop")
        match delta.finish:
            case None:
                return Piece(text)
            case Finish.STOP | Finish.LENGTH:
                return self._end(text, "stop" if delta.finish is Finish.STOP else "length")
            case Finish.ABORT:
                raise ApiError(503, "This node ended the request: try another node.", code="aborted")
            case Finish.ERROR:
                raise ApiError(500, "The engine failed at this request: try another node.", code="engine_failed")

    def _end(self, text: str, finish: FinishReason) -> Piece:
        text += self._stops.push(self._detokenizer.finish())
        text += self._stops.finish()
        return Piece(text, "stop" if self._stops.found else finish)


class Chat:
    """Opens answers. One per engine; belongs to the event loop."""

    def __init__(
        self,
        engine: EngineLoop,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        seeds: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._template = template
        self._seeds = seeds

    async def open(self, request: ChatRequest, answer_id: str, terms: Terms) -> Answer:
        """Starts to generate. Raises ApiError where the messages cannot be rendered or the engine has stopped."""
        if request.prompt_chars > INLINE_CHARS:
            prompt = await asyncio.to_thread(self._encode, request)
        else:
            prompt = self._encode(request)
        generation = self._engine.generate(
            GenerationRequest(
                answer_id,
                prompt,
                self._sampling(request),
                self._max_tokens(request, len(prompt)),
                salt=terms.salt,
                priority=terms.priority,
            )
        )
        return Answer(generation, Detokenizer(self._tokenizer), request.stop, len(prompt))

    def _encode(self, request: ChatRequest) -> tuple[int, ...]:
        messages: list[dict[str, Any]] = [asdict(message) for message in request.messages]
        try:
            prompt = tuple(self._tokenizer.encode(self._template.render(messages, add_generation_prompt=True)))
        except ValueError as error:
            raise invalid(f"{error}.", "messages", "invalid_messages") from error
        if not prompt:
            raise invalid("The chat template made no tokens of these messages.", "messages", "invalid_messages")
        return prompt

    def _sampling(self, request: ChatRequest) -> Sampling:
        return Sampling(
            temperature=request.temperature,
            top_p=max(request.top_p, LEAST_TOP_P),
            top_k=min(request.top_k, self._engine.limits.vocab),
            seed=(self._seeds() if request.seed is None else request.seed) % 2**64,
            stop_ids=() if request.ignore_eos else tuple(self._tokenizer.eos_ids),
        )

    def _max_tokens(self, request: ChatRequest, prompt: int) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        return max(1, min(DEFAULT_MAX_TOKENS, admission.room(self._engine.limits) - prompt))


def answer_id() -> str:
    return f"chatcmpl-{secrets.token_hex(16)}"


def created() -> int:
    return int(time.time())
