"""Begins generations: what a request asks for, in the engine's own terms."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import NamedTuple

from edgeproxy.protocol.node.request import Terms
from edgeproxy.protocol.node.resume import Resume
from edgeproxy.protocol.openai.decoding import Decoding
from edgeproxy.protocol.openai.errors import ApiError, invalid
from engine import admission
from engine.answer import Answer, Choices, Opening
from engine.constraint import Constraint
from engine.loop import EngineLoop
from engine.sequence import GenerationRequest
from engine.step import Finish, Sampling
from engine.text.logprobs import told
from engine.text.reader import Piece, Reader
from engine.text.tokenizer import Tokenizer
from engine.text.tools.events import Parser

DEFAULT_MAX_TOKENS = 1024
"""Where the client names none. Memory is reserved for all of them, so the model's whole context would be too dear."""
LEAST_TOP_P = 2.0**-24
"""top_p 0 means the likeliest token alone."""


def no_constraint() -> Constraint | None:
    return None


def no_parser() -> Parser | None:
    return None


class Prompt(NamedTuple):
    """What is to be answered, and in what form."""

    ids: tuple[int, ...]
    constraint: Callable[[], Constraint | None] = no_constraint
    """A new one for each answer."""
    parser: Callable[[], Parser | None] = no_parser
    marks: frozenset[int] = frozenset()
    """Control tokens that the parser must see."""
    known: int = 0
    """Tokens at the end of the prompt that are sampled as they are known, so that their log-probabilities are told."""
    echo: Piece | None = None
    """What the answer begins with."""
    where: str = "messages"
    """The field that it comes of."""

    @property
    def resumable(self) -> bool:
        return self.echo is None


class Opener:
    """One per engine; belongs to the event loop."""

    def __init__(self, engine: EngineLoop, tokenizer: Tokenizer, seeds: Callable[[], int]) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._seeds = seeds

    @property
    def context(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return admission.room(self._engine.limits)

    def choices(
        self, request: Decoding, prompts: list[Prompt], name: str, terms: Terms, ignored: tuple[str, ...] = ()
    ) -> Choices:
        """`request.n` answers to each prompt. `ignored`: fields that this model can do nothing with.

        Raises ApiError where the engine has stopped.
        """
        begin: list[Callable[[], Answer]] = []
        for number, prompt in enumerate(prompts):
            self._check_fits(request, prompt)
            for choice in range(request.n):
                begin.append(self._beginning(request, prompt, name, terms, number * request.n + choice))
        resumable = all(prompt.resumable for prompt in prompts) and not (
            request.top_logprobs is not None and prompts[0].parser()
        )
        most = self._engine.limits.slots
        return Choices(begin, request.n, most, resumable=resumable, ignored=ignored)

    def resumed(self, request: Decoding, prompt: Prompt, name: str, terms: Terms, resume: Resume) -> Choices:
        """Goes on from where another node ended. Raises ApiError, 409 where this one computes otherwise."""
        if request.n > 1:
            raise ApiError(409, "A stream of several answers cannot be resumed.", "cannot_resume", "n")
        if resume.numerics != self._engine.numerics:
            raise ApiError(
                409, "This node computes otherwise than the one to be resumed: ask one of equal numerics.", "numerics"
            )
        self._check_ids("resume", resume.ids)
        known = len(resume.ids)
        resume = self._replayable(request, resume)
        sampling = self._sampling(request, prompt, resume.seed)
        reader = self._reader(request, prompt, sampling, resume.chars)
        constraint = prompt.constraint()
        replayed = self._replay(resume, reader, sampling, constraint)
        generation = None
        if replayed is None or not replayed.finish:
            generation = self._engine.generate(
                GenerationRequest(
                    name,
                    prompt.ids + resume.ids,
                    sampling,
                    resume.max_tokens - len(resume.ids),
                    salt=terms.salt,
                    priority=_priority(request, terms),
                    constraint=constraint,
                )
            )
        opening = Opening(sampling.seed, resume.max_tokens)
        again = known - len(resume.ids)
        answer = Answer(generation, reader, opening, len(prompt.ids), replayed, again, _form(request))
        return Choices([lambda: answer])

    def check(self, request: Decoding) -> None:
        """Raises ApiError 400 for tokens that the model does not have."""
        self._check_ids("logit_bias", (token for token, _ in request.logit_bias))
        self._check_ids("stop_token_ids", request.stop_token_ids)

    def _check_ids(self, field: str, ids: Iterable[int]) -> None:
        vocab = self._engine.limits.vocab
        if any(token >= vocab for token in ids):
            raise invalid(f"'{field}' names a token outside this model's {vocab}.", field, "invalid_value")

    def _check_fits(self, request: Decoding, prompt: Prompt) -> None:
        """Raises ApiError 400 before anything begins of a request of which a part cannot."""
        most = self._max_tokens(request, len(prompt.ids))
        if most + prompt.known:
            admission.check_fits(len(prompt.ids), most, self._engine.limits, prompt.where)

    def _beginning(
        self, request: Decoding, prompt: Prompt, name: str, terms: Terms, index: int
    ) -> Callable[[], Answer]:
        # Answers to one prompt differ by their seeds, which follow each other where the client gave one.
        seed = self._seeds() if request.seed is None else request.seed + index % request.n
        if index == 0:
            return lambda: self._begin(request, prompt, name, terms, seed)
        late = terms._replace(strict=False)  # a latency budget is for the first token of all
        return lambda: self._begin(request, prompt, f"{name}-{index}", late, seed)

    def _begin(self, request: Decoding, prompt: Prompt, name: str, terms: Terms, seed: int) -> Answer:
        sampling = self._sampling(request, prompt, seed)
        most = self._max_tokens(request, len(prompt.ids))
        reader = self._reader(request, prompt, sampling)
        opening = Opening(sampling.seed, most)
        if not most + prompt.known:
            echo = prompt.echo or Piece(())
            return Answer(None, reader, opening, len(prompt.ids), echo._replace(finish="length"))
        generation = self._engine.generate(
            GenerationRequest(
                name,
                prompt.ids[: len(prompt.ids) - prompt.known],
                sampling,
                most + prompt.known,
                salt=terms.salt,
                priority=_priority(request, terms),
                within_s=terms.within_s,
                constraint=prompt.constraint(),
            )
        )
        return Answer(generation, reader, opening, len(prompt.ids), prompt.echo, form=_form(request))

    def _reader(self, request: Decoding, prompt: Prompt, sampling: Sampling, skip: int = 0) -> Reader:
        return Reader(self._tokenizer, request, sampling.stop_ids, skip, prompt.parser(), prompt.marks, prompt.known)

    def _replayable(self, request: Decoding, resume: Resume) -> Resume:
        """Without the tokens whose log-probabilities were still held back with their text: no note tells those. They
        are sampled again, and come out the same."""
        if request.top_logprobs is None or resume.finished:
            return resume
        return resume._replace(ids=resume.ids[: told(self._tokenizer, resume.ids, resume.chars)])

    def _replay(
        self, resume: Resume, reader: Reader, sampling: Sampling, constraint: Constraint | None
    ) -> Piece | None:
        if not resume.ids:
            return None
        piece = reader.read(resume.ids)
        if piece.finish:
            return piece
        if resume.ids[-1] in sampling.stop_ids:
            return reader.end(piece, "stop")
        if constraint is not None and Finish.STOP in [constraint.accept(token) for token in resume.ids]:
            return reader.end(piece, "stop")
        return reader.end(piece, "length") if len(resume.ids) >= resume.max_tokens else piece

    def _sampling(self, request: Decoding, prompt: Prompt, seed: int) -> Sampling:
        """The random number of a token depends on the seed and its position alone, so a resumed one gets the same."""
        ends = () if request.ignore_eos else self._tokenizer.eos_ids
        return Sampling(
            temperature=request.temperature,
            top_p=max(request.top_p, LEAST_TOP_P),
            top_k=min(request.top_k, self._engine.limits.vocab),
            seed=seed % 2**64,
            stop_ids=(*ends, *request.stop_token_ids),
            min_p=request.min_p,
            repetition=request.repetition_penalty,
            frequency=request.frequency_penalty,
            presence=request.presence_penalty,
            bias=request.logit_bias,
            first=len(prompt.ids),
            min_tokens=request.min_tokens,
            constrained=prompt.constraint is not no_constraint,
            logprobs=request.top_logprobs,
        )

    def _max_tokens(self, request: Decoding, prompt: int) -> int:
        if request.max_tokens is not None:
            return request.max_tokens
        return max(1, min(DEFAULT_MAX_TOKENS, self.context - prompt))


def _form(request: Decoding) -> str:
    """The field that says what form an answer has, where one does."""
    return request.format.where if request.format else "tools"


def _priority(request: Decoding, terms: Terms) -> int:
    """What the proxy says counts; who asks a node itself says it in the body."""
    return terms.priority or request.priority or 0


def random_seed() -> int:
    return secrets.randbits(64)
