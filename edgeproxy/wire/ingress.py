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
    """Event-loop time (seconds, monotonic) at which the request's first byte was read, before any parsing."""
    rtt: Callable[[], float | None]
    """The client's round trip in seconds as the kernel or QUIC measures it now; None where nothing is known."""


def ingress(scope: Scope) -> Ingress | None:
    """None under a foreign ASGI server (tests, other deployments)."""
    found = (scope.get("extensions") or {}).get(SCOPE_KEY)
    return found if isinstance(found, Ingress) else None
