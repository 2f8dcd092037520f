"""How long a newcomer waits until its own prompt begins to run. Pure.

The engine as two servers. Prompts run one after the other, as fast as prompts did lately beside what else ran; answers
run beside each other, a token a step. A place is a slot and the blocks that are promised with it: who waits takes
places in order, as those that run end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

HORIZON_S = 120.0
"""Nobody is told of a longer wait, so none is looked for."""


class Pace(NamedTuple):
    """As measured."""

    prompt_tokens_per_s: float
    step_s: float
    answer_tokens: float | None
    """Mean of the answers that ended lately; None while too few have."""

    def left(self, max_tokens: int, *, had: int = 0, least: int = 0) -> float:
        """Tokens that an answer of which `max_tokens` may follow still takes.

        had: tokens that it has had. least: of those that may follow, how many will for certain.

        As if ends came at random: the mean, but never more than asked for. One that has had more than the mean is of
        another kind than most, and is taken to be half through. All that was asked for, while no mean is known.
        """
        if self.answer_tokens is None:
            return max_tokens
        return min(max_tokens, max(self.answer_tokens, had, least))


class Job(NamedTuple):
    """What is left of a request."""

    prompt: int
    """Tokens to be run before it decodes."""
    answer: float
    """Tokens to be decoded."""
    blocks: int
    """That its end gives back, or that its start takes."""


@dataclass(slots=True)
class Room:
    slots: int
    blocks: int


class Wait(NamedTuple):
    """Seconds from now."""

    place_s: float
    """Until there is a slot and memory."""
    prompts_s: float
    """Until the prompts that go first are through."""

    @property
    def seconds(self) -> float:
        return max(self)


def wait_of(newcomer: Job, running: Iterable[Job], ahead: Iterable[Job], room: Room, pace: Pace) -> Wait:
    """ahead: those that take places before it, in order. room: what is free now; it is used up.

    Of the prompts that take places first only the shorter ones go first: a long one is passed by.
    """
    through = 0.0
    """When the prompts seen so far are through, if all run."""
    first = 0
    """Tokens of prompts that go first."""
    ends: list[tuple[float, int]] = []
    for job in running:
        through += job.prompt / pace.prompt_tokens_per_s
        first += _passing(job, newcomer)
        heappush(ends, (through * bool(job.prompt) + job.answer * pace.step_s, job.blocks))
    now = 0.0
    for job in chain(ahead, (newcomer,)):
        while ends and (room.slots < 1 or room.blocks < job.blocks):
            ended, blocks = heappop(ends)
            now = max(now, ended)
            room.slots += 1
            room.blocks += blocks
        if job is newcomer or now > HORIZON_S:
            break
        room.slots -= 1
        room.blocks -= job.blocks
        through = max(through, now) + job.prompt / pace.prompt_tokens_per_s
        first += _passing(job, newcomer)
        heappush(ends, (through + job.answer * pace.step_s, job.blocks))
    return Wait(now, first / pace.prompt_tokens_per_s)


def _passing(job: Job, newcomer: Job) -> int:
    return job.prompt if job.prompt <= newcomer.prompt else 0
