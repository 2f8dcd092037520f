"""A request to the engine, what comes back of it, and its state while it is scheduled."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from edgeproxy.protocol.node.blocks import Prefix
from engine.constraint import Constraint
from engine.kv import TOKEN_TYPE, Link
from engine.step import BLOCK_TOKENS, Finish, Logprobs, Row, Sampling


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    request_id: str
    """Unique among the requests that an engine holds."""
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: Sampling
    max_tokens: int
    """Most tokens to sample, at least one."""
    salt: bytes = b""
    """Only requests of the same salt share KV: a secret's function of the tenant."""
    priority: int = 0
    """Lower runs earlier."""
    within_s: float | None = None
    """Where set, the request is to be refused if its first token will not come within so long."""
    constraint: Constraint | None = None
    """Of the tokens that are to be sampled; set where `sampling.constrained`, and of this request alone."""
    rehearsal: bool = False
    """Nobody waits for it: it is not counted, and what it computes is not found by others."""

    @property
    def resumed(self) -> bool:
        """Whether it goes on with an answer that was begun elsewhere."""
        return len(self.prompt) > self.sampling.first > 0


class Timing(NamedTuple):
    """Where the time to the first token went, in seconds."""

    queue_s: float
    """From submission until the first step with a row of this sequence began."""
    prefill_s: float
    """From there to the end of the step that sampled the first token."""
    first_s: float
    """From there until the token left the engine."""


@dataclass(slots=True)
class Delta:
    """What one or more steps added to a generation. Nobody changes it; as a Row, it is not frozen by Python."""

    tokens: tuple[int, ...]
    """Sampled ids in order; with Finish.STOP the last of them is the stop id."""
    finish: Finish | None = None
    timing: Timing | None = None
    """On the first delta with a token."""
    cached: int = 0
    """Prompt tokens whose KV was reused instead of computed; set beside `timing`."""
    prefix: Prefix | None = None
    """The prompt's full blocks, where it has any; set beside `timing`."""
    logprobs: tuple[Logprobs, ...] = ()
    """One for each of `tokens`, where they were asked for."""


class Ahead(NamedTuple):
    """What the sample on its way stands for, where what follows it is forced (`engine/jump.py`)."""

    tokens: tuple[int, ...]
    finish: Finish | None
    """Why the sequence ends with the last of them, if it does."""


class Phase(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    LEAVING = "leaving"
    """Ended or preempted, but a plan that has not completed may name it."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The scheduler's state of one request. Only the scheduler and its tables write it."""

    request: GenerationRequest
    submitted: float
    """Clock in seconds."""
    rank: tuple[float, int]
    """Order among all requests, the lowest first; no two have the same."""
    phase: Phase = Phase.WAITING
    slot: int = -1
    opened: bool = False
    """A plan has opened the slot."""
    tokens: array[int] = field(init=False)
    """All that are known: the prompt, what was sampled, and what is forced behind it."""
    links: list[Link] = field(default_factory=list)
    """Of the full blocks of `tokens`, as far as they were needed."""
    names: list[bytes] = field(default_factory=list)
    """Of the same, where there is a second tier."""
    blocks: tuple[int, ...] = ()
    """Physical blocks of positions [0, planned)."""
    charged: bool = False
    """Its tenant's share knows of its prompt."""
    promised: int = 0
    """Blocks that it may still take, whatever others do."""
    registered: int = 0
    """Leading blocks that were offered to the index."""
    counted: int = 0
    """Leading blocks that the gauges know of."""
    cached: int = 0
    """Prompt tokens whose KV was found instead of computed."""
    known: int = 0
    """Tokens whose KV the pool held when it had to wait, as far as anybody looked."""
    bounded: bool = False
    """It waits since its wait was forecast to be short enough."""
    prefill: int = field(init=False)
    """Tokens known when it started, to be run before it decodes."""
    planned: int = 0
    """Positions covered by submitted plans and by reuse."""
    sampling: int = 0
    """Tokens that submitted plans sample: known results and those on their way."""
    generated: int = 0
    """Tokens known."""
    forced: int = 0
    """Where the last forced tokens end: up to there rows name their tokens, as those of a prompt."""
    ahead: Ahead | None = None
    """Set from when it is known until the result of the row on its way."""
    last_step: int = 0
    """The last plan that names it."""
    started: float | None = None
    """When its first step began."""
    finish: Finish | None = None
    aborted_at: int | None = None
    """Step counter when its end was asked for."""

    def __post_init__(self) -> None:
        self.tokens = array(TOKEN_TYPE, self.request.prompt)
        self.prefill = len(self.tokens)

    @property
    def prefills(self) -> bool:
        """Whether known tokens are left to be run before it decodes."""
        return self.planned < self.prefill

    @property
    def prompt_left(self) -> int:
        """Known tokens that no plan runs yet, before it decodes."""
        return max(0, self.prefill - self.planned)

    @property
    def prompt_awaited(self) -> int:
        """Of these those that somebody waits for: a rehearsal makes way for any request."""
        return 0 if self.request.rehearsal else self.prompt_left

    @property
    def unknown(self) -> int:
        """Of these those whose KV is nowhere, as far as anybody looked."""
        return max(0, self.prompt_left - self.known) if self.phase is Phase.WAITING else self.prompt_left

    @property
    def answer_left(self) -> int:
        """Most tokens that may still be sampled."""
        return self.request.max_tokens - self.generated

    @property
    def answer_certain(self) -> int:
        """Of these those that nothing which is sampled spares (a stop string still may, behind min_tokens)."""
        sampling = self.request.sampling
        endless = not sampling.stop_ids and self.request.constraint is None
        return self.answer_left if endless else max(0, sampling.min_tokens - self.generated)

    @property
    def decodes(self) -> bool:
        """Whether a further decode row is wanted: never one that could exceed max_tokens."""
        if self.ahead is not None and self.ahead.finish is not None:
            return False
        return self.planned >= self.prefill and self.sampling < self.request.max_tokens

    def named(self, most: int) -> tuple[int, ...]:
        """The tokens that its next row names, `most` at most; none where it runs the one that was sampled last."""
        return tuple(self.tokens[self.planned : min(self.forced, self.planned + most)])

    def holds(self, count: int) -> bool:
        """Whether its blocks hold so many more positions."""
        return self.planned + count <= len(self.blocks) * BLOCK_TOKENS

    def row(self, tokens: tuple[int, ...]) -> Row:
        """Its next row, which is planned by this: of `tokens`, or where there are none of the one sampled last."""
        start, sampling = self.planned, self.request.sampling
        self.planned += len(tokens) or 1
        sample = self.planned >= max(self.prefill, self.forced)
        self.sampling += sample
        if self.opened and not tokens:  # nearly all rows: said first for their sake
            return Row(self.slot, start, tokens, self.blocks, sample)
        forced = bool(tokens) and self.forced > 0
        if self.opened and not (forced and sample and sampling.penalises):
            return Row(self.slot, start, tokens, self.blocks, sample, forced=forced)
        self.opened = True
        history = tuple(self.tokens) if sampling.penalises else ()
        return Row(self.slot, start, tokens, self.blocks, sample, sampling, history, forced)

    @property
    def prefix(self) -> Prefix | None:
        """The full blocks of the prompt, once `links` names them."""
        blocks = len(self.request.prompt) // BLOCK_TOKENS
        return Prefix(self.links[blocks - 1][0], blocks) if blocks else None

    def timing(self, sampled: float, now: float) -> Timing | None:
        """sampled: when the step of its first token ended; now: when that leaves the engine. None if it never began."""
        if self.started is None:
            return None
        return Timing(max(0.0, self.started - self.submitted), sampled - self.started, max(0.0, now - sampled))

    def restart(self) -> None:
        """Nothing of it is in an executor any more: the next run begins with all tokens known by now."""
        self.phase = Phase.WAITING
        self.slot, self.opened = -1, False
        self.blocks, self.registered, self.planned, self.forced = (), 0, 0, 0
        self.prefill = len(self.tokens)
