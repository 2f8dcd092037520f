"""Where an origin can be reached over HTTP/3, by its Alt-Svc fields (RFC 7838). Pure: `now` is passed in."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

DEFAULT_MAX_AGE_S = 24 * 3600.0
"""RFC 7838 section 3.1."""
MAX_ORIGINS = 1000
FIRST_WAIT_S = 30.0
"""A broken alternative is left alone for so long, and for twice as long after each further failure."""
LAST_WAIT_S = 24 * 3600.0

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_PARAMETER = re.compile(rf"\s*;\s*({_TOKEN})\s*=\s*({_TOKEN}|{_QUOTED})")
_ALTERNATIVE = re.compile(
    rf"\s*({_TOKEN})=({_QUOTED})((?:\s*;\s*{_TOKEN}\s*=\s*(?:{_TOKEN}|{_QUOTED}))*)(?:(?:\s*,)+|\s*$)"
)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@\s]*):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port, over TCP (an origin) or over UDP (its alternative)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Alternative:
    protocol: str
    host: str
    """Empty: the origin's own."""
    port: int
    max_age_s: float


def parse(value: str) -> list[Alternative] | None:
    """Alternatives in the origin's order of preference; None for `clear`. Raises ValueError for a malformed value."""
    if value.strip() == "clear":
        return None
    found, at = list[Alternative](), 0
    while at < len(value):
        match = _ALTERNATIVE.match(value, at)
        if match is None:
            raise ValueError(f"not an Alt-Svc value: {value[at : at + 40]!r}")
        protocol, authority, parameters = match.groups()
        found.append(_alternative(unquote(protocol), _unquoted(authority), parameters))
        at = match.end()
    return found


def _alternative(protocol: str, authority: str, parameters: str) -> Alternative:
    where = _AUTHORITY.fullmatch(authority)
    if where is None or not 0 < int(where[2]) < 65536:
        raise ValueError(f"not an authority: {authority[:40]!r}")
    given = {name.lower(): _unquoted(value) for name, value in _PARAMETER.findall(parameters)}
    age = given.get("ma", "")
    max_age_s = float(age) if age.isascii() and age.isdigit() else DEFAULT_MAX_AGE_S
    return Alternative(protocol, where[1].strip("[]"), int(where[2]), max_age_s)


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


@dataclass(slots=True)
class _Broken:
    failures: int
    until: float


class AltSvc:
    """What origins have said, as long as it holds, and which of it has turned out not to work."""

    def __init__(self, protocol: str = "h3") -> None:
        self._protocol = protocol
        self._known: OrderedDict[Endpoint, list[tuple[Endpoint, float]]] = OrderedDict()
        self._broken: OrderedDict[Endpoint, _Broken] = OrderedDict()

    def told(self, origin: Endpoint, values: Iterable[str], now: float) -> None:
        """An https response of `origin` had these Alt-Svc fields; they replace what it said before (section 3.1). What
        cannot be read counts as not said."""
        joined = ", ".join(values)
        if not joined:
            return
        try:
            alternatives = parse(joined)
        except ValueError:
            return
        self._known.pop(origin, None)
        usable = [
            (Endpoint(found.host or origin.host, found.port), now + found.max_age_s)
            for found in alternatives or ()
            if found.protocol == self._protocol
        ]
        if usable:
            self._known[origin] = usable
            _bound(self._known)

    def endpoint(self, origin: Endpoint, now: float) -> Endpoint | None:
        """The first alternative of `origin` that still holds and is not known to be broken."""
        for endpoint, expires in self._known.get(origin, ()):
            broken = self._broken.get(endpoint)
            if now < expires and (broken is None or now >= broken.until):
                return endpoint
        return None

    def broke(self, endpoint: Endpoint, now: float) -> None:
        """It did not connect, or went silent."""
        broken = self._broken.pop(endpoint, None) or _Broken(0, now)
        wait = min(FIRST_WAIT_S * 2.0 ** min(broken.failures, 30), LAST_WAIT_S)
        self._broken[endpoint] = _Broken(broken.failures + 1, now + wait)
        _bound(self._broken)

    def works(self, endpoint: Endpoint) -> None:
        """A request was answered there."""
        self._broken.pop(endpoint, None)


def _bound(entries: OrderedDict[Endpoint, list[tuple[Endpoint, float]]] | OrderedDict[Endpoint, _Broken]) -> None:
    while len(entries) > MAX_ORIGINS:
        entries.popitem(last=False)
