"""Asks nodes that are not our own how busy they are and how long a request may be."""

from __future__ import annotations

import contextlib
from math import inf

from edgeproxy.protocol.node.foreign import GAUGES, MAX_METRICS_BYTES, context_of, load_of
from edgeproxy.routing.load import Occupancy
from edgeproxy.upstream.h1 import UpstreamError
from edgeproxy.upstream.node import Node

METRICS = b"/metrics"
ASK_AGAIN_S = 60.0
"""A server without metrics (SGLang and llama.cpp have them only where asked to) is asked so seldom."""
MAX_ANSWER_BYTES = 2**20
_CONTEXT = {"vllm": b"/v1/models", "sglang": b"/v1/models", "llamacpp": b"/props"}
_FULL = 0.99
"""Share of KV memory at which there is no room for another prompt."""


class Foreign:
    """What is to be asked of one node beside its health. Part of its probe; costs no tokens."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._kind = node.config.kind
        self._not_before = -inf

    async def look(self, now: float, trip: float) -> None:
        """`trip`: the node's round trip in seconds. Raises UpstreamError."""
        if self._kind in GAUGES and now >= self._not_before:
            await self._load(now, trip)
        if self._kind in _CONTEXT and self._node.context is None:
            await self._context()

    async def _load(self, now: float, trip: float) -> None:
        status, body = await self._get(METRICS, MAX_METRICS_BYTES)
        told = load_of(self._kind, body) if status == 200 else None
        if told is None:
            self._not_before = now + ASK_AGAIN_S
            return
        full = told.kv_used is not None and told.kv_used >= _FULL
        occupancy = Occupancy(told.running, told.waiting, free_tokens=0 if full else None)
        self._node.outlook.load.reported(occupancy, self._node.outlook.pace, now, trip)

    async def _context(self) -> None:
        config = self._node.config
        status, body = await self._get(_CONTEXT[self._kind], MAX_ANSWER_BYTES)
        found = context_of(body, config.name_of(config.models[0])) if status == 200 else None
        self._node.context = found or 0

    async def _get(self, path: bytes, limit: int) -> tuple[int, bytes]:
        """Status and body. Raises UpstreamError, also where the body is longer than `limit`."""
        response = await self._node.pool.request(b"GET", path, self._node.headers, at_once=True)
        with contextlib.closing(response):
            pieces, size = list[bytes](), 0
            while data := await response.read():
                size += len(data)
                if size > limit:
                    raise UpstreamError("body", self._node.name, f"{path.decode()} answers more than {limit} bytes")
                pieces.append(data)
        return response.status, b"".join(pieces)
