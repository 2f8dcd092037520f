"""A request to the engine, what comes back of it, and its state while it is scheduled."""

from __future__ import annotations

from dataclasses import dataclass

from engine.step import Finish, Sampling


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    request_id: str
    """Unique among the requests that an engine holds."""
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: Sampling
    max_tokens: int
    """Most tokens to sample, at least one."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time to the first token went, in seconds."""

    queue_s: float
    """From submission until the first step with a row of this sequence began."""
    prefill_s: float
    """From there to the end of the step that sampled the first token."""
    first_s: float
    """From there until the token left the engine."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one or more steps added to a generation."""

    tokens: tuple[int, ...]
    """Sampled ids in order; with Finish.STOP the last of them is the stop id."""
    finish: Finish | None = None
    timing: Timing | None = None
    """On the first delta with a token."""
    cached: int = 0
    """Prompt tokens whose KV was reused instead of computed; set beside `timing`."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The scheduler's state of one request. Only the scheduler writes it."""

    request: GenerationRequest
    submitted: float
    """Clock in seconds."""
    slot: int = -1
    blocks: tuple[int, ...] = ()
    """Physical blocks, enough for prompt + max_tokens, from start to release."""
    cached: int = 0
    """Prompt tokens that are in `blocks` from the start."""
    planned: int = 0
    """Positions covered by submitted plans (and by the cache)."""
    sampling: int = 0
    """Tokens that submitted plans sample: known results and those on their way."""
    generated: int = 0
    """Tokens known."""
    last_step: int = 0
    """The last plan that names it."""
    started: float | None = None
    """When its first step began."""
    finish: Finish | None = None
    aborted_at: int | None = None
    """Step counter when its end was asked for."""

    @property
    def prompt_left(self) -> int:
        """Prompt tokens not planned yet."""
        return max(0, len(self.request.prompt) - self.planned)

    @property
    def decodes(self) -> bool:
        """Whether a further decode row is wanted: never one that could exceed max_tokens."""
        return not self.prompt_left and self.sampling < self.request.max_tokens
