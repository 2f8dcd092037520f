"""What a native node says of itself: in a header of each answer and at GET /node/v1/status."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from edgeproxy.protocol.node.said import number, read_object

REPORT_HEADER = b"x-node-report"
TOKEN_HEADER = b"x-node-token"
"""Carries the proxy's node token; all but health answers 401 without it, on loopback too, where a node has one."""
TOKEN_ENV = "EDGEPROXY_NODE_TOKEN"
TIMING_HEADER = b"server-timing"
"""A node's own terms in Server-Timing form: queue, prefill, first (all in ms)."""
TOKENS_HEADER = b"x-node-tokens"
"""`57;cached=32`: how many tokens a request's prompt has, and how many of them the node need not compute. The usage at
the end of a stream tells the same, but only where the client asked for it, and too late for an estimate."""
MAX_REPORT_BYTES = 4096
_TOKENS = re.compile(rb"([0-9]{1,9});cached=([0-9]{1,9})")


class NodeState(StrEnum):
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class NodeReport(NamedTuple):
    """A snapshot of a node's load. `step_counter` is the heartbeat: running > 0 and no step means unhealthy."""

    state: NodeState
    model: str
    numerics: str
    running: int
    waiting: int
    waiting_prefill_tokens: int
    kv_blocks_total: int
    kv_blocks_free: int
    kv_blocks_evictable: int
    block_tokens: int
    prefill_tokens_per_s: float
    step_ms: float
    step_counter: int
    handling_s: float
    """Seconds this node spent on the answer that carries the report; a probe subtracts it from its round trip."""

    def encode(self) -> bytes:
        return orjson.dumps(self._asdict())


def decode(raw: bytes) -> NodeReport:
    """Raises ValueError on anything a sound node would not send; unknown keys are ignored (newer nodes)."""
    value = read_object(raw, "node report", MAX_REPORT_BYTES)
    return NodeReport(
        state=NodeState(_text(value, "state")),
        model=_text(value, "model"),
        numerics=_text(value, "numerics"),
        running=_count(value, "running"),
        waiting=_count(value, "waiting"),
        waiting_prefill_tokens=_count(value, "waiting_prefill_tokens"),
        kv_blocks_total=_count(value, "kv_blocks_total"),
        kv_blocks_free=_count(value, "kv_blocks_free"),
        kv_blocks_evictable=_count(value, "kv_blocks_evictable"),
        block_tokens=_count(value, "block_tokens"),
        prefill_tokens_per_s=_number(value, "prefill_tokens_per_s"),
        step_ms=_number(value, "step_ms"),
        step_counter=_count(value, "step_counter"),
        handling_s=_number(value, "handling_s"),
    )


def encode_tokens(prompt: int, cached: int) -> bytes:
    return b"%d;cached=%d" % (prompt, cached)


def decode_tokens(raw: bytes | None) -> tuple[int | None, int | None]:
    """(prompt, cached); None where the node does not say, or not so that it can be read."""
    found = None if raw is None else _TOKENS.fullmatch(raw)
    return (None, None) if found is None else (int(found[1]), int(found[2]))


def _text(value: dict[str, Any], name: str) -> str:
    item = value.get(name)
    if not isinstance(item, str):
        raise ValueError(f"node report: {name} is not a string")
    return item


def _count(value: dict[str, Any], name: str) -> int:
    item = value.get(name)
    if not isinstance(item, int) or isinstance(item, bool) or item < 0:
        raise ValueError(f"node report: {name} is not a count")
    return item


def _number(value: dict[str, Any], name: str) -> float:
    found = number(value.get(name))
    if found is None:
        raise ValueError(f"node report: {name} is not a non-negative number")
    return found
