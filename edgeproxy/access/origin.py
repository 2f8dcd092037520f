"""Where a listener may be reached, and under which names: what keeps web pages from talking to a proxy on loopback."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from edgeproxy.config import Address
from edgeproxy.protocol.openai.errors import ApiError

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d{0,5})?")
_MAX_HOST_BYTES = 300
_REMEMBERED = 1024


class BindError(ValueError):
    """A listener that would be open to everybody."""


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or `localhost`, reaches this machine only."""
    if host == "localhost":
        return True
    address = _address(host)
    return address is not None and address.is_loopback


def check_bind(address: Address, *, keys_required: bool) -> None:
    """Raises BindError where a listener would serve other machines without asking for keys."""
    if not keys_required and not is_loopback(address.host):
        raise BindError(
            f"{address} can be reached from other machines, but no keys are configured; "
            "listen on 127.0.0.1, or make keys with `edgeproxy keys` and name their file as `keys:` in regions.yaml"
        )


class HostCheck:
    """Accepts requests whose `Host` names this proxy, whatever the port.

    DNS rebinding lets a web page's own name point here; what the page sends then carries that name. Accepted are
    loopback, the addresses bound (any address, but no name, where one of them is a wildcard) and the names configured.
    """

    def __init__(self, bound: Iterable[Address], names: Iterable[str] = ()) -> None:
        hosts = {address.host.lower() for address in bound}
        wildcard = any((found := _address(host)) is not None and found.is_unspecified for host in hosts)
        self._hosts = _LOOPBACK_NAMES | hosts | {name.lower() for name in names}
        self._any_address = wildcard
        self._accepted: set[bytes] = set()

    def check(self, host: bytes | None) -> None:
        """Raises ApiError 421 (RFC 9110 section 15.5.20). `host` is the field's value, with or without a port."""
        if host in self._accepted:
            return
        if host is None or not self._accepts(host):
            raise ApiError(
                421,
                "the Host field does not name this proxy; use the address it listens on, or have the operator add the "
                "name to `hosts:` in regions.yaml",
                "misdirected_request",
            )
        if len(self._accepted) < _REMEMBERED:
            self._accepted.add(host)

    def _accepts(self, host: bytes) -> bool:
        if len(host) > _MAX_HOST_BYTES:
            return False
        name = _without_port(host.decode("latin-1").lower())
        return name in self._hosts or (self._any_address and _address(name) is not None)


def _without_port(host: str) -> str:
    """RFC 9110 section 7.2: uri-host [":" port]; empty where it is neither."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2] or "").removesuffix(".") if found else ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
