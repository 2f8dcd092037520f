"""Where a node lives: the scheme, host and port of its URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """RFC 6454 origin of a node. Comes from configuration only; redirects are never followed."""

    scheme: Literal["http", "https"]
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The `host` header's value (RFC 9110 section 7.2): the port stands only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


def parse(url: str) -> Origin:
    """Raises ValueError, naming the remedy, on anything that is not plainly `http(s)://host[:port]`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"node url {url!r} has no http or https scheme: write http://host:port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("node url holds a user or password: name an environment variable in api_key_env instead")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"node url {url!r} has more than an origin: write only scheme, host and port")
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError(f"node url {url!r} has a port that is none: {error}") from error
    if not parts.hostname or any(not "!" <= character <= "~" for character in parts.hostname):
        raise ValueError(f"node url {url!r} names no host: write http://host:port")
    scheme: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
    return Origin(scheme, parts.hostname, port or _DEFAULT_PORTS[scheme])
