from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Everything here runs on the loop that the proxy uses and on the one it can fall back to."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
