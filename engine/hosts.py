"""Which `Host` a node answers to. A page whose own name was rebound to this address gets nothing from it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from edgeproxy.protocol.openai.errors import ApiError

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Hosts:
    """Loopback names, the bound address and `also`; where all addresses are bound, any literal address too."""

    def __init__(self, bound: str, also: Iterable[str] = ()) -> None:
        self._names = _LOOPBACK_NAMES | {bound.lower(), *(name.lower() for name in also)}
        self._any_address = bound in ("0.0.0.0", "::", "")

    def check(self, header: bytes) -> None:
        """Raises ApiError 421 (RFC 9110 section 15.5.20)."""
        name = _name(header.decode("latin-1").lower())
        if name in self._names or (self._any_address and _is_address(name)):
            return
        raise ApiError(
            421,
            "This node does not answer to that Host: use its address, or start it with --allow-host.",
            code="misdirected_request",
        )


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _name(host: str) -> str:
    """Without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
