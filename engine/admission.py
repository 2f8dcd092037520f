"""What a request will need against what there is: refused before it runs, with a way to succeed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from edgeproxy.protocol.openai.errors import ApiError
from engine import refusals
from engine.executor.base import Limits
from engine.forecast import Pace, Room, Wait, wait_of
from engine.gauges import Gauges
from engine.kv import blocks_for
from engine.places import Places
from engine.sequence import GenerationRequest, Sequence
from engine.step import BLOCK_TOKENS
from engine.tables import Tables
from engine.waiting import Waiting, cost_of, job_of

GROWTH_BLOCKS = 2
"""That an optimistic start is promised beyond what it knows, so that it gets somewhere before it may be preempted."""


class Mode(StrEnum):
    """What a sequence is promised at its start."""

    GUARANTEE = "guarantee"
    """Blocks for all of max_tokens: what is admitted runs to its end."""
    OPTIMISTIC = "optimistic"
    """Blocks for what is known and a little more: more run at the same time, the newest is preempted when all grow."""


def blocks_needed(request: GenerationRequest, mode: Mode = Mode.GUARANTEE, known: int = 0) -> int:
    """What to promise to a request of which `known` tokens (at least its prompt) are known."""
    worst = blocks_for(len(request.prompt) + request.max_tokens)
    if mode is Mode.GUARANTEE:
        return worst
    return min(worst, blocks_for(max(known, len(request.prompt))) + GROWTH_BLOCKS)


def room(limits: Limits) -> int:
    """Most prompt + completion tokens of one request on an empty node."""
    return min(limits.context, limits.blocks * BLOCK_TOKENS)


def check_fits(prompt: int, max_tokens: int, limits: Limits, where: str = "prompt") -> None:
    """Raises ApiError 400 `context_length_exceeded` where no waiting will help.

    prompt: its tokens, which the field `where` holds.
    """
    most = room(limits)
    if prompt + max_tokens <= most:
        return
    fits = max(0, most - prompt)
    why = "as many as its KV pool" if limits.blocks * BLOCK_TOKENS <= limits.context else "the model's context"
    remedy = f"lower max_tokens to {fits}" if fits else f"shorten '{where}' below {most} tokens"
    raise ApiError(
        400,
        f"This node takes {most} tokens per request ({why}), but {prompt + max_tokens} were asked for "
        f"({prompt} in '{where}', {max_tokens} for the completion): {remedy}.",
        code="context_length_exceeded",
        param="max_tokens" if fits else where,
        recovery={"max_tokens_that_fit": fits},
    )


class Admission:
    """Who may come in, and who of those inside may start. Reads what the scheduler holds, and changes none of it."""

    def __init__(
        self,
        limits: Limits,
        places: Places,
        tables: Tables,
        waiting: Waiting,
        gauges: Gauges,
        *,
        queue: int,
        max_wait_s: float | None,
        mode: Mode,
        lone_s: float,
    ) -> None:
        """lone_s: how long a step may take where one prompt runs alone."""
        self._limits = limits
        self._places = places
        self._tables = tables
        self._waiting = waiting
        self._gauges = gauges
        self._queue = queue
        self._max_wait_s = max_wait_s
        self._mode = mode
        self._lone_s = lone_s

    def enter(self, sequence: Sequence) -> tuple[Sequence, ApiError] | None:
        """Lets a newcomer in, which may cost another its place in the queue: that one, and what it is to be told.

        Raises ApiError where it will never fit (400), or comes too late, would wait too long or finds no room (429).
        """
        check_fits(len(sequence.request.prompt), sequence.request.max_tokens, self._limits)
        must_wait = bool(self._waiting) or not self.can_start(sequence)
        if must_wait or sequence.request.within_s is not None:
            self._check_wait(sequence, must_wait)
        if not must_wait or len(self._waiting) < self._queue:
            return None
        refusal = self._full(sequence)
        out = self._waiting.crowding_out(sequence.request.salt)
        if out is None:
            raise refusal
        return out, self._full(out)

    def overdue(self, now: float) -> tuple[Sequence, ApiError] | None:
        """Whose turn it is, and what to tell it, where it has waited for as long as anybody may and is to expect as
        much again: answers before it turned out longer than those before them.

        Who was let in whatever the wait (nothing was known, or somebody has seen a part of it) waits on.
        """
        pace, most_s = self._gauges.pace, self._max_wait_s
        if pace is None or most_s is None or not self._waiting:
            return None
        head = self._waiting.next()
        waited_s = now - head.submitted
        if waited_s <= most_s or head.charged or not head.bounded:
            return None
        wait = self._wait_of(head, (), pace)
        if wait.seconds <= most_s:
            return None
        return head, refusals.waited_too_long(waited_s, wait.seconds, most_s, self._awaited(wait))

    def can_start(self, sequence: Sequence) -> bool:
        return self._places.free > 0 and self._tables.fits(sequence, self.needed(sequence), self._headroom)

    def needed(self, sequence: Sequence) -> int:
        """Blocks that it is promised at its start."""
        return blocks_needed(sequence.request, self._mode, len(sequence.tokens))

    @property
    def _headroom(self) -> int:
        """Blocks for those that run to grow into."""
        return len(self._places.running) if self._mode is Mode.OPTIMISTIC else 0

    def _full(self, sequence: Sequence) -> ApiError:
        """What keeps the one whose turn it is out, keeps all behind it out."""
        head = self._waiting.next() if self._waiting else sequence
        pace = self._gauges.pace
        place_s = refusals.UNKNOWN_S
        if pace is not None and pace.answer_tokens is not None:
            place_s = self._wait_of(head, (), pace).place_s
        queued = f"{len(self._waiting)} wait, the most that may" if self._queue else "none may wait"
        if not self._places.free:
            return refusals.no_slot(self._places.slots, queued, place_s)
        free = max(0, self._tables.spare - self._headroom)
        fits = 0 if self._waiting else max(0, free * BLOCK_TOKENS - len(sequence.request.prompt))
        return refusals.no_memory(self.needed(head) * BLOCK_TOKENS, free * BLOCK_TOKENS, fits, queued, place_s)

    def _check_wait(self, sequence: Sequence, must_wait: bool) -> None:
        """Raises ApiError where it will wait too long, as far as is known: for itself or for this node.

        What somebody has seen a part of is not refused for this node's sake.
        """
        pace = self._gauges.pace
        if pace is None:
            return
        sequence.known = self._tables.known(sequence)
        ahead = self._waiting.before(sequence, lambda other: cost_of(other, pace))
        wait = self._wait_of(sequence, ahead, pace)
        if pace.answer_tokens is None:
            wait = wait._replace(place_s=0.0)  # nobody knows when one ends
        self._check_in_time(sequence, wait, pace)
        most_s = self._max_wait_s if must_wait and not sequence.request.resumed else None
        if most_s is None or pace.answer_tokens is None:
            return
        if wait.seconds > most_s:
            raise refusals.waits_too_long(wait.seconds, most_s, self._awaited(wait))
        sequence.bounded = True

    def _check_in_time(self, sequence: Sequence, wait: Wait, pace: Pace) -> None:
        """Raises ApiError where it asked to be told that its first token will come too late."""
        within_s = sequence.request.within_s
        if within_s is None:
            return
        alone_s = self._gauges.prefill_cost.alone(sequence.unknown, sequence.known, self._lone_s)
        if alone_s > within_s:
            raise refusals.too_slow(within_s, alone_s)
        own_s = sequence.unknown / pace.prompt_tokens_per_s if self._places.running else alone_s
        if wait.seconds + own_s > within_s:
            raise refusals.too_late(within_s, wait.seconds + own_s, wait.seconds or refusals.UNKNOWN_S)

    def _awaited(self, wait: Wait) -> str:
        if wait.prompts_s > wait.place_s:
            return "the prompts before it"
        return "memory" if self._places.free else f"one of {self._places.slots} slots"

    def _wait_of(self, sequence: Sequence, ahead: Iterable[Sequence], pace: Pace) -> Wait:
        places = self._places
        leaving = sum(len(other.blocks) for other in places.leaving)
        room = Room(places.free + len(places.leaving), self._tables.spare + leaving)
        running = (job_of(other, len(other.blocks) + other.promised, pace) for other in places.running)
        waiting = (job_of(other, self.needed(other), pace) for other in ahead)
        return wait_of(job_of(sequence, self.needed(sequence), pace), running, waiting, room, pace)
