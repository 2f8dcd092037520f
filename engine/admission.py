"""What a request will need against what there is: refused before it runs, with a way to succeed. Pure."""

from __future__ import annotations

import math

from edgeproxy.protocol.openai.errors import ApiError
from engine.executor.base import Limits
from engine.kv import blocks_for
from engine.sequence import GenerationRequest
from engine.step import BLOCK_TOKENS

RETRY_MS = (50, 30_000)
"""Least and most that a refused client is asked to wait."""


def blocks_needed(request: GenerationRequest) -> int:
    """Worst case: every token of max_tokens is sampled. Reserved whole, so that an admitted request always ends."""
    return blocks_for(len(request.prompt) + request.max_tokens)


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


def refusal(request: GenerationRequest, blocks_to_spare: int, wait_s: float) -> ApiError:
    """429 `oom_predicted`: the queue is full.

    blocks_to_spare: free blocks less those that waiting requests will take.
    wait_s: expected time until a place in the queue is free.
    """
    fits = max(0, blocks_to_spare * BLOCK_TOKENS - len(request.prompt))
    wait_ms = round(min(max(wait_s * 1000, RETRY_MS[0]), RETRY_MS[1]))
    return ApiError(
        429,
        f"This node's memory and queue are full: try again in {wait_ms} ms, or on another node.",
        code="oom_predicted",
        recovery={"max_tokens_that_fit": min(fits, request.max_tokens), "retry_after_ms": wait_ms},
        headers=(
            (b"retry-after-ms", str(wait_ms).encode()),
            (b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),
        ),
    )
