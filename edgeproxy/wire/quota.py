"""How many connections a listener holds, in all and per client address."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable

from edgeproxy.wire.limits import Limits


def address_key(host: str) -> str:
    """What counts as one client: an IPv4 address (mapped or not), or the /64 that an IPv6 host can pick from."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))


class Quota:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_client: Counter[str] = Counter()
        self.total = 0

    def admit(self, host: str) -> Callable[[], None] | None:
        """Counts one connection from `host` until the returned function is called; None when a limit is reached."""
        key = address_key(host)
        if self.total >= self._limits.connections or self._by_client[key] >= self._limits.connections_per_address:
            return None
        self.total += 1
        self._by_client[key] += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self.total -= 1
                self._by_client[key] -= 1
                if not self._by_client[key]:
                    del self._by_client[key]

        return release
