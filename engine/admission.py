"""What a request will need against what there is: refused before it runs, with a way to succeed. Pure."""

from __future__ import annotations

import math
from enum import StrEnum

from edgeproxy.protocol.openai.errors import ApiError
from engine.executor.base import Limits
from engine.forecast import Wait
from engine.kv import blocks_for
from engine.sequence import GenerationRequest
from engine.step import BLOCK_TOKENS

RETRY_MS = (50, 30_000)
"""Least and most that a refused client is asked to wait."""
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


def check_fits(request: GenerationRequest, limits: Limits) -> None:
    """Raises ApiError 400 `context_length_exceeded` where no waiting will help."""
    prompt, most = len(request.prompt), room(limits)
    if prompt + request.max_tokens <= most:
        return
    fits = max(0, most - prompt)
    remedy = f"lower max_tokens to {fits}" if fits else f"shorten the messages below {most} tokens"
    raise ApiError(
        400,
        f"This node holds {most} tokens per request, but {prompt + request.max_tokens} were asked for "
        f"({prompt} in the messages, {request.max_tokens} for the completion): {remedy}.",
        code="context_length_exceeded",
        param="max_tokens" if fits else "messages",
        recovery={"max_tokens_that_fit": fits},
    )


def too_late(within_s: float, expected_s: float, wait_s: float) -> ApiError:
    """429 `latency_budget_exceeded`: the first token will come too late to be of use.

    expected_s: when it would come; wait_s: after how long it would come in time.
    """
    wait_ms = _wait_ms(wait_s)
    return ApiError(
        429,
        f"The first token would come after about {expected_s * 1000:.0f} ms, and the latency budget leaves "
        f"{within_s * 1000:.0f}: try another node, or again in {wait_ms} ms.",
        code="latency_budget_exceeded",
        recovery={"expected_ms": round(expected_s * 1000), "retry_after_ms": wait_ms},
        headers=_retry_headers(wait_ms),
    )


def check_in_time(request: GenerationRequest, wait: Wait, own_s: float) -> None:
    """Raises ApiError 429 where it asked to be told that its first token will come too late, as far as is known.

    own_s: of its own prompt.
    """
    expected_s = wait.seconds + own_s
    if request.within_s is not None and expected_s > request.within_s:
        raise too_late(request.within_s, expected_s, wait.seconds)


def waits_too_long(wait_s: float, most_s: float) -> ApiError:
    """429 `wait_predicted`: its prompt would begin to run after more than the node lets anybody wait.

    Who comes again when `retry_after_ms` is over would be let in, if nobody came meanwhile.
    """
    retry_ms = _wait_ms(wait_s - most_s)
    return ApiError(
        429,
        f"This request would wait here for about {wait_s:.1f} s, and the most is {most_s:.1f}: "
        f"try another node, or again in {retry_ms} ms.",
        code="wait_predicted",
        recovery={"expected_ms": round(wait_s * 1000), "retry_after_ms": retry_ms},
        headers=_retry_headers(retry_ms),
    )


def refusal(request: GenerationRequest, blocks_to_spare: int, wait_s: float) -> ApiError:
    """429 `oom_predicted`: the queue is full.

    blocks_to_spare: available blocks less those that are promised and those that waiting requests will be.
    wait_s: expected time until a place in the queue is free.
    """
    fits = max(0, blocks_to_spare * BLOCK_TOKENS - len(request.prompt))
    wait_ms = _wait_ms(wait_s)
    return ApiError(
        429,
        f"This node's memory and queue are full: try again in {wait_ms} ms, or on another node.",
        code="oom_predicted",
        recovery={"max_tokens_that_fit": min(fits, request.max_tokens), "retry_after_ms": wait_ms},
        headers=_retry_headers(wait_ms),
    )


def _wait_ms(wait_s: float) -> int:
    return round(min(max(wait_s * 1000, RETRY_MS[0]), RETRY_MS[1]))


def _retry_headers(wait_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"retry-after-ms", str(wait_ms).encode()),
        (b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),
    )
