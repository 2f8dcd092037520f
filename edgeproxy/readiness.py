"""When a starting proxy is announced as ready, and what people are told of nodes that are not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

OTHERS_S = 3.0
"""How long the first node's readiness waits for the others' before it is announced."""
LATE_S = 5.0
"""Without any ready node for so long, people are told why."""


class Starting(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def trouble(self) -> str: ...


async def until_ready(
    nodes: Callable[[], Sequence[Starting]],
    changed: asyncio.Event,
    stop: asyncio.Event,
    say: Callable[[str], None],
    *,
    late_s: float = LATE_S,
    others_s: float = OTHERS_S,
) -> None:
    """Returns when a node is ready and the others had their time, or when the proxy is to stop.

    `changed`: set when a node has become ready, or is no longer. Of a node that never was, nobody else tells.
    """
    told: dict[str, str] = {}

    def tell() -> None:
        for node in nodes():
            if not node.ready and told.get(node.name) != node.trouble:
                told[node.name] = node.trouble
                say(f"{node.name}: not ready: {node.trouble}")

    while not stop.is_set() and not any(node.ready for node in nodes()):
        if not await _first(changed, stop, seconds=late_s):
            tell()
        changed.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(others_s):
            while not stop.is_set() and not all(node.ready for node in nodes()):
                await _first(changed, stop)
                changed.clear()
    if not stop.is_set():
        tell()


async def _first(*events: asyncio.Event, seconds: float | None = None) -> bool:
    """Whether one came within `seconds`."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for task in waiting:
            task.cancel()
