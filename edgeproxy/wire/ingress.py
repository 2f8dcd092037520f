"""What a listener knows of a connection and passes to the application beside the ASGI scope."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

Scope = MutableMapping[str, Any]
SCOPE_KEY = "edgeproxy"
"""`scope["extensions"][SCOPE_KEY]` holds the request's Ingress."""


@dataclass(frozen=True, slots=True)
class Ingress:
    protocol: Literal["h1", "h2", "h3"]
    first_byte: float
    """`time.monotonic()` at which the request's first byte was read, before any parsing. (`loop.time()` is the same
    clock, but uvloop reads it once a turn and in whole milliseconds: too coarse for a latency budget.)"""
    rtt: Callable[[], float | None]
    """The client's round trip in seconds as the kernel or QUIC measures it now; None where nothing is known."""


def ingress(scope: Scope) -> Ingress | None:
    """None under a foreign ASGI server (tests, other deployments)."""
    found = (scope.get("extensions") or {}).get(SCOPE_KEY)
    return found if isinstance(found, Ingress) else None
