"""How a node says that it cannot take a request now: what is short, by how much, and what to do about it. Pure.

A time to come again is told only where waiting helps; where it does not, the client is told not to.
"""

from __future__ import annotations

import math

from edgeproxy.protocol.openai.errors import ApiError

RETRY_MS = (50, 30_000)
"""Least and most that a refused client is asked to wait."""
UNKNOWN_S = 1.0
"""To come again after, where nobody knows when a place will be free."""
NO_RETRY = (b"x-should-retry", b"false")
"""To OpenAI's SDKs: they try a 429 again by themselves."""

ROOM_CODES = ("slots_full", "oom_predicted", "wait_predicted")
"""Of refusals that the end of others would have spared."""


def too_slow(within_s: float, own_s: float) -> ApiError:
    """429 `latency_budget_exceeded`: its own prompt takes too long, even on a node that does nothing else.

    A 429 since a faster node may take it, but this one will not: no time to come again is told.
    """
    return ApiError(
        429,
        f"The prompt alone takes about {own_s * 1000:.0f} ms here, and the latency budget leaves "
        f"{within_s * 1000:.0f}, so that waiting does not help: try another node, shorten the messages, or raise "
        "the budget.",
        code="latency_budget_exceeded",
        recovery={"expected_ms": round(own_s * 1000)},
        headers=(NO_RETRY,),
    )


def too_late(within_s: float, expected_s: float, wait_s: float) -> ApiError:
    """429 `latency_budget_exceeded`: the first token will come too late to be of use.

    expected_s: when it would come; wait_s: until others are out of its way, after which it would come in time.
    """
    wait_ms = _wait_ms(wait_s)
    return _later(
        f"The first token would come after about {expected_s * 1000:.0f} ms, and the latency budget leaves "
        f"{within_s * 1000:.0f}: try another node, or again in {wait_ms} ms.",
        "latency_budget_exceeded",
        expected_s,
        wait_ms,
    )


def waits_too_long(wait_s: float, most_s: float, why: str) -> ApiError:
    """429 `wait_predicted`: its prompt would begin to run after more than the node lets anybody wait.

    why: what it would wait for. Who comes again after `retry_after_ms` would be let in, if nobody came meanwhile.
    """
    retry_ms = _wait_ms(wait_s - most_s)
    return _later(
        f"This request would wait here for {why} for about {wait_s:.1f} s, and the most is {most_s:.1f}: "
        f"try another node, or again in {retry_ms} ms.",
        "wait_predicted",
        wait_s,
        retry_ms,
    )


def waited_too_long(waited_s: float, wait_s: float, most_s: float, why: str) -> ApiError:
    """429 `wait_predicted`: it was let in, but what it waits for takes longer than was to be expected.

    wait_s: for how much longer it would wait.
    """
    retry_ms = _wait_ms(wait_s - most_s)
    return _later(
        f"This request has waited here for {why} for {waited_s:.1f} s, and would for about {wait_s:.1f} s more; the "
        f"most is {most_s:.1f}: try another node, or again in {retry_ms} ms.",
        "wait_predicted",
        wait_s,
        retry_ms,
    )


def no_slot(slots: int, queued: str, wait_s: float) -> ApiError:
    """429 `slots_full`: as many requests run as can, and nobody else may wait for one to end.

    wait_s: until a place in the queue is free. A shorter answer would not be let in either.
    """
    wait_ms = _wait_ms(wait_s)
    return ApiError(
        429,
        f"All {slots} slots of this node are taken, and {queued}: try again in {wait_ms} ms, or on another node.",
        code="slots_full",
        recovery={"retry_after_ms": wait_ms},
        headers=_retry_headers(wait_ms),
    )


def no_memory(needed: int, free: int, fits: int, queued: str, wait_s: float) -> ApiError:
    """429 `oom_predicted`: there are slots, but not the memory, and nobody else may wait for it.

    needed, free: tokens of KV that the next in turn asks for, and that are promised to nobody. fits: max_tokens with
    which this very request would be taken now, 0 for none. wait_s: until a place in the queue is free.
    """
    wait_ms = _wait_ms(wait_s)
    remedy = f"lower max_tokens to {fits}, " if fits else ""
    return ApiError(
        429,
        f"The next request needs memory for {needed} tokens, of which this node has {free} to spare, and {queued}: "
        f"{remedy}try again in {wait_ms} ms, or on another node.",
        code="oom_predicted",
        recovery={"max_tokens_that_fit": fits, "retry_after_ms": wait_ms},
        headers=_retry_headers(wait_ms),
    )


def too_many(most: int, what: str, code: str) -> ApiError:
    """429: of something that a client can open as many as it likes. what: as a plural."""
    wait_ms = _wait_ms(UNKNOWN_S)
    return ApiError(
        429,
        f"This node has {most} {what}, the most there may be: try again in {wait_ms} ms, or on another node.",
        code=code,
        recovery={"retry_after_ms": wait_ms},
        headers=_retry_headers(wait_ms),
    )


def _later(message: str, code: str, expected_s: float, retry_ms: int) -> ApiError:
    return ApiError(
        429,
        message,
        code=code,
        recovery={"expected_ms": round(expected_s * 1000), "retry_after_ms": retry_ms},
        headers=_retry_headers(retry_ms),
    )


def _wait_ms(wait_s: float) -> int:
    return round(min(max(wait_s * 1000, RETRY_MS[0]), RETRY_MS[1]))


def _retry_headers(wait_ms: int) -> tuple[tuple[bytes, bytes], ...]:
    return (
        (b"retry-after-ms", str(wait_ms).encode()),
        (b"retry-after", str(math.ceil(wait_ms / 1000)).encode()),
    )
