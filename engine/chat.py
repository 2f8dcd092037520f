"""A chat request on this engine: messages to tokens, tokens to pieces of text."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from edgeproxy.protocol.node.blocks import Prefix
from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.node.resume import Resume
from edgeproxy.protocol.openai.chat import FinishReason, TokenLogprob, Usage
from edgeproxy.protocol.openai.errors import ApiError, invalid
from edgeproxy.protocol.openai.schema import ChatRequest
from engine import admission
from engine.loop import EngineLoop, Generation
from engine.sequence import Delta, GenerationRequest, Timing
from engine.step import Finish, Logprobs, Sampling
from engine.text.detokenize import Detokenizer
from engine.text.guard import Guard
from engine.text.logprobs import TokenLogprobs, told
from engine.text.prompt import Draft, PromptEncoder
from engine.text.stop import StopStrings
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer

INLINE_CHARS = 2000
"""More characters to encode, and longer prompts to render, go to a thread, so that the event loop goes on."""
INLINE_RENDER_CHARS = 32_000
DEFAULT_MAX_TOKENS = 1024
"""Where the client names none. Memory is reserved for all of them, so the model's whole context would be too dear."""
LEAST_TOP_P = 2.0**-24
"""top_p 0 means the likeliest token alone."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer."""

    text: str
    finish: FinishReason | None = None
    ids: tuple[int, ...] = ()
    """The tokens that were read for it; their text may still be held back."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of the tokens that begin in this text, where they were asked for."""


class Opening(NamedTuple):
    """What was decided for a request, and what a node that resumes it must be told."""

    seed: int
    max_tokens: int


class Reader:
    """Tokens to text: never half a character, nothing of a stop string or stop id, and nothing after one."""

    def __init__(self, tokenizer: Tokenizer, request: ChatRequest, stop_ids: tuple[int, ...], skip: int = 0) -> None:
        """`skip`: characters of text that the client has got already."""
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(request.stop)
        self._stop_ids = stop_ids
        self._min_tokens = request.min_tokens
        self._logprobs = None if request.top_logprobs is None else TokenLogprobs(tokenizer)
        self._skip = skip
        self._characters = 0
        """Of all text that tokens have completed, shown or held back."""
        self.tokens = 0
        """Read so far. Counts the token that ended the answer, but none sampled after a stop string."""

    def read(self, tokens: tuple[int, ...], logprobs: tuple[Logprobs, ...] = ()) -> Piece:
        """logprobs: of each token, where the request asks for them; of replayed ones the client has them already."""
        text = ""
        for index, token in enumerate(tokens):  # one by one: what follows a stop string is neither shown nor counted
            self.tokens += 1
            if token in self._stop_ids:
                continue
            if self._logprobs is not None and logprobs:
                self._logprobs.push(token, logprobs[index], self._characters)
            text += self._pass_on(self._detokenizer.push((token,)))
            if self._stops.found:
                return self._piece(text, tokens[: index + 1], "stop")
        return self._piece(text, tokens)

    def end(self, piece: Piece, finish: FinishReason) -> Piece:
        """The last piece, with what was held back."""
        text = self._pass_on(self._detokenizer.finish())
        last = self._piece(text + self._stops.finish(), piece.ids, "stop" if self._stops.found else finish)
        rest = self._logprobs.rest() if self._logprobs is not None and not self._stops.found else ()
        return replace(last, text=piece.text + last.text, logprobs=piece.logprobs + last.logprobs + rest)

    def _pass_on(self, text: str) -> str:
        """What can be shown of new text. Stop strings count from the first text after min_tokens."""
        self._characters += len(text)
        return text if self.tokens <= self._min_tokens else self._stops.push(text)

    def _piece(self, text: str, ids: tuple[int, ...], finish: FinishReason | None = None) -> Piece:
        told = self._logprobs.shown(len(text)) if self._logprobs is not None else ()
        new = text[self._skip :]
        self._skip -= len(text) - len(new)
        return Piece(new, finish, ids, told)


class Answer:
    """One generation as text. `next` until a piece has a finish reason; `abort` at any time."""

    def __init__(
        self,
        generation: Generation | None,
        reader: Reader,
        opening: Opening,
        prompt_tokens: int,
        replayed: Piece | None = None,
        again: int = 0,
    ) -> None:
        """`replayed`: what another node sampled, read again; with a finish reason where nothing is left to generate.
        `again`: how many tokens behind those it had sampled, too."""
        self._generation = generation
        self._reader = reader
        self.opening = opening
        self._prompt_tokens = prompt_tokens
        self._replayed = replayed
        self.again = again
        self._cached = 0
        self.submitted = generation.submitted if generation is not None else 0.0
        """When the engine got it: monotonic clock, seconds."""
        self.timing: Timing | None = None
        """Known from the first piece on."""
        self.prefix: Prefix | None = None
        """The prompt's full blocks, known at the same time."""

    async def next(self) -> Piece:
        """The next piece with tokens or a finish reason; its text may be empty.

        Raises ApiError where the engine refused the request, failed at it, or was told to abort it.
        """
        if self._generation is None:
            assert self._replayed is not None
            return self._replayed
        while True:
            delta = await self._generation.next()
            if delta.timing is not None:
                # A resumed answer finds the KV of its own tokens too: those are no part of the prompt.
                self.timing, self._cached = delta.timing, min(delta.cached, self._prompt_tokens)
                self.prefix = delta.prefix
            piece = self._read(delta)
            if piece.ids or piece.finish:
                return self._with_replayed(piece)

    def abort(self) -> None:
        if self._generation is not None:
            self._generation.abort()

    def usage(self) -> Usage:
        """So far."""
        return Usage(self._prompt_tokens, self._reader.tokens, self._cached)

    def _read(self, delta: Delta) -> Piece:
        piece = self._reader.read(delta.tokens, delta.logprobs)
        if piece.finish:
            self.abort()
            return piece
        match delta.finish:
            case None:
                return piece
            case Finish.STOP | Finish.LENGTH:
                return self._reader.end(piece, "stop" if delta.finish is Finish.STOP else "length")
            case Finish.ABORT:
                raise ApiError(503, "This node ended the request: try another node.", code="aborted")
            case Finish.ERROR:
                raise ApiError(500, "The engine failed at this request: try another node.", code="engine_failed")

    def _with_replayed(self, piece: Piece) -> Piece:
        replayed, self._replayed = self._replayed, None
        return piece if replayed is None else replace(piece, text=replayed.text + piece.text)


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
        self._encoder = PromptEncoder(tokenizer)
        self._guard = Guard(tokenizer.control_names)
        self._template = template
        self._seeds = seeds

    async def open(self, request: ChatRequest, answer_id: str, terms: Terms, resume: Resume | None = None) -> Answer:
        """Starts to generate, or to generate on from where another node ended.

        Raises ApiError where the messages cannot be rendered, the engine has stopped or computes otherwise than the
        node that is to be resumed.
        """
        self._check(request, resume)
        known = len(resume.ids) if resume is not None else 0
        if resume is not None:
            resume = self._replayable(request, resume)
        prompt = await self._prompt(request, terms.salt)
        sampling = self._sampling(request, resume, len(prompt))
        most = self._max_tokens(request, len(prompt)) if resume is None else resume.max_tokens
        reader = Reader(self._tokenizer, request, sampling.stop_ids, resume.chars if resume is not None else 0)
        ids: tuple[int, ...] = ()
        replayed: Piece | None = None
        if resume is not None and resume.ids:
            ids, replayed = resume.ids, self._replay(resume, reader, sampling)
        generation = None
        if replayed is None or not replayed.finish:
            generation = self._engine.generate(
                GenerationRequest(
                    answer_id,
                    prompt + ids,
                    sampling,
                    most - len(ids),
                    salt=terms.salt,
                    priority=terms.priority,
                    within_s=terms.within_s if resume is None else None,
                )
            )
        return Answer(generation, reader, Opening(sampling.seed, most), len(prompt), replayed, known - len(ids))

    def _check(self, request: ChatRequest, resume: Resume | None) -> None:
        self._check_ids("logit_bias", (token for token, _ in request.logit_bias))
        self._check_ids("stop_token_ids", request.stop_token_ids)
        if resume is None:
            return
        if resume.numerics != self._engine.numerics:
            raise ApiError(
                409, "This node computes otherwise than the one to be resumed: ask one of equal numerics.", "numerics"
            )
        self._check_ids("resume", resume.ids)

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        vocab = self._engine.limits.vocab
        if any(token >= vocab for token in ids):
            raise invalid(f"'{field}' names a token outside this model's {vocab}.", field, "invalid_value")

    def _replayable(self, request: ChatRequest, resume: Resume) -> Resume:
        """Without the tokens whose log-probabilities were still held back with their text: no note tells those. They
        are sampled again, and come out the same."""
        if request.top_logprobs is None or resume.finished:
            return resume
        return replace(resume, ids=resume.ids[: told(self._tokenizer, resume.ids, resume.chars)])

    def _replay(self, resume: Resume, reader: Reader, sampling: Sampling) -> Piece:
        piece = reader.read(resume.ids)
        if piece.finish:
            return piece
        if resume.ids[-1] in sampling.stop_ids:
            return reader.end(piece, "stop")
        return reader.end(piece, "length") if len(resume.ids) >= resume.max_tokens else piece

    async def _prompt(self, request: ChatRequest, salt: bytes) -> tuple[int, ...]:
        try:
            if request.prompt_chars > INLINE_RENDER_CHARS:
                draft = await asyncio.to_thread(self._draft, request, salt)
            else:
                draft = self._draft(request, salt)
            prompt = await asyncio.to_thread(draft.ids) if draft.missing_chars > INLINE_CHARS else draft.ids()
        except ValueError as error:
            raise invalid(f"{error}.", "messages", "invalid_messages") from error
        if not prompt:
            raise invalid("The chat template made no tokens of these messages.", "messages", "invalid_messages")
        return prompt

    def _draft(self, request: ChatRequest, salt: bytes) -> Draft:
        messages, mark = self._guard.guarded([asdict(message) for message in request.messages])
        return self._encoder.draft(self._template.render(messages, add_generation_prompt=True), salt, mark)

    def _sampling(self, request: ChatRequest, resume: Resume | None, prompt: int) -> Sampling:
        """The random number of a token depends on the seed and its position alone, so a resumed one gets the same."""
        ends = () if request.ignore_eos else self._tokenizer.eos_ids
        given = request.seed if resume is None else resume.seed
        return Sampling(
            temperature=request.temperature,
            top_p=max(request.top_p, LEAST_TOP_P),
            top_k=min(request.top_k, self._engine.limits.vocab),
            seed=(self._seeds() if given is None else given) % 2**64,
            stop_ids=(*ends, *request.stop_token_ids),
            min_p=request.min_p,
            repetition=request.repetition_penalty,
            frequency=request.frequency_penalty,
            presence=request.presence_penalty,
            bias=request.logit_bias,
            first=prompt,
            min_tokens=request.min_tokens,
            logprobs=request.top_logprobs,
        )

    def _max_tokens(self, request: ChatRequest, prompt: int) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        return max(1, min(DEFAULT_MAX_TOKENS, admission.room(self._engine.limits) - prompt))


def answer_id() -> str:
    return f"chatcmpl-{secrets.token_hex(16)}"


def created() -> int:
    return int(time.time())
