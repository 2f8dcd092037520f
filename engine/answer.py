"""One generation as text, and several as the choices of one request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgeproxy.protocol.node.blocks import Prefix
from edgeproxy.protocol.openai.chat import Usage
from edgeproxy.protocol.openai.errors import ApiError, invalid
from engine.generation import Generation
from engine.refusals import ROOM_CODES
from engine.sequence import Delta, Timing
from engine.step import Finish
from engine.text.reader import Piece, Reader


class Opening(NamedTuple):
    """What was decided for a request, and what a node that resumes it must be told."""

    seed: int
    max_tokens: int


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
        form: str = "",
    ) -> None:
        """`replayed`: what another node sampled, read again; with a finish reason where nothing is left to generate.
        `again`: how many tokens behind those it had sampled, too. `form`: the field that says what form it has."""
        self._generation = generation
        self._reader = reader
        self.opening = opening
        self._prompt_tokens = prompt_tokens
        self._replayed = replayed
        self.again = again
        self._form = form
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
                raise _aborted()
            case Finish.RULES:
                raise invalid(
                    f"'{self._form}' cannot be followed: what may come next is too much work to tell. Make it simpler.",
                    self._form,
                    "unsupported_schema",
                )
            case Finish.ERROR:
                raise ApiError(500, "The engine failed at this request: try another node.", code="engine_failed")

    def _with_replayed(self, piece: Piece) -> Piece:
        replayed, self._replayed = self._replayed, None
        if replayed is None:
            return piece
        return piece._replace(events=replayed.events + piece.events, logprobs=replayed.logprobs + piece.logprobs)


def _aborted() -> ApiError:
    return ApiError(503, "This node ended the request: try another node.", code="aborted")


class Choices:
    """The answers to one request, by their indexes: `n` to each prompt.

    At most as many run at the same time as the engine has places. Those that find no room beside the others wait until
    one has ended: alone each fits, or it would not have come so far.
    """

    def __init__(
        self,
        begin: Sequence[Callable[[], Answer]],
        n: int = 1,
        most: int = 1,
        *,
        resumable: bool = True,
        ignored: tuple[str, ...] = (),
    ) -> None:
        """`begin`: begins each. `most`: at the same time. `resumable`: another node could go on with it, from its
        tokens alone. `ignored`: fields of the request that its model can do nothing with."""
        self._begin = begin
        self._n = n
        self._most = most
        self.ignored = ignored
        self._ready = deque(range(0, len(begin), n))
        """Whose turn comes. The others to a prompt follow the first one's first token, to find its prompt computed."""
        self._unheard = set(self._ready)
        self.answers: dict[int, Answer] = {}
        self._next: dict[asyncio.Task[Piece], int] = {}
        self._live = set[int]()
        self.count = len(begin)
        self.resumable = resumable and self.count == 1
        try:
            self._fill()
        except BaseException:
            self.abort()
            raise

    @property
    def first(self) -> Answer:
        return self.answers[0]

    async def next(self) -> tuple[int, Piece]:
        """Which answer, and its next piece; as often as `done` is false. Raises ApiError, and is then over."""
        if self.count == 1:
            piece = await self.first.next()
            self._live = self._live if piece.finish is None else set()
            return 0, piece
        while True:
            for index in sorted(self._live.difference(self._next.values())):
                self._next[asyncio.create_task(self.answers[index].next())] = index
            done, _ = await asyncio.wait(self._next, return_when=asyncio.FIRST_COMPLETED)
            task = min(done, key=lambda found: self._next[found])
            index = self._next.pop(task)
            if task.cancelled():  # by `abort`
                raise _aborted()
            if not self._postponed(index, task.exception()):
                break
        piece = task.result()
        if piece.finish is not None:
            self._live.discard(index)
        if index in self._unheard:
            self._unheard.discard(index)
            self._ready.extendleft(reversed(range(index + 1, index + self._n)))
        self._fill()
        return index, piece

    @property
    def siblings(self) -> int:
        """Answers that were begun with their prompt's first token."""
        return sum(index % self._n > 0 for index in self.answers)

    @property
    def done(self) -> bool:
        return not self._live and not self._ready

    def abort(self) -> None:
        """Ends all of them. Harmless when they have ended."""
        self._ready.clear()
        for task in self._next:
            task.cancel()
        for answer in self.answers.values():
            answer.abort()

    def usage(self) -> Usage:
        """So far. Each prompt counts once."""
        told = {index: answer.usage() for index, answer in self.answers.items()}
        firsts = [usage for index, usage in told.items() if index % self._n == 0]
        return Usage(
            sum(usage.prompt for usage in firsts),
            sum(usage.completion for usage in told.values()),
            sum(usage.cached for usage in firsts),
        )

    def _fill(self) -> None:
        while self._ready and len(self._live) < self._most:
            index = self._ready.popleft()
            self.answers[index] = self._begin[index]()
            self._live.add(index)

    def _postponed(self, index: int, error: BaseException | None) -> bool:
        """Whether it was refused for want of room, which comes when another of these answers has ended.

        Where none is left and a part is told already, it comes again when the refusal says, instead of taking that
        part back.
        """
        if not isinstance(error, ApiError) or error.code not in ROOM_CODES:
            return False
        if len(self._live) > 1:
            self._live.discard(index)
            self._ready.appendleft(index)
            self._most = len(self._live)
        elif len(self._unheard) < self.count // self._n:
            self._next[asyncio.create_task(self._again(index, (error.recovery or {})["retry_after_ms"] / 1000))] = index
        else:
            return False
        return True

    async def _again(self, index: int, wait_s: float) -> Piece:
        await asyncio.sleep(wait_s)
        self.answers[index] = self._begin[index]()
        return await self.answers[index].next()
