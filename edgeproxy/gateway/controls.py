"""What a client may ask of the routing, in header fields. Each is honoured or refused with 400."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from edgeproxy.protocol.node.request import BUDGET_HEADER, POLICY_HEADER, budget_ms
from edgeproxy.protocol.openai.errors import ApiError, invalid

REGION = b"x-edge-region"
"""A region, or several in order of preference: the request is served in one of them."""
SESSION = b"x-session-id"
"""Requests of one session share a beginning: their node is kept while that costs little."""
DEGRADE = b"x-edge-degrade"
"""`allow`: rather a shorter answer than none."""
TIMINGS = b"x-edge-timings"
"""`usage`: the request's ledger stands beside the usage (`timings`)."""

ONCE = frozenset(
    (BUDGET_HEADER, POLICY_HEADER, SESSION, DEGRADE, TIMINGS, b"authorization", b"content-type", b"content-encoding")
)
"""Fields that have one value: which of two was meant, only the client knows."""

_MAX_REGIONS = 16
_MAX_SESSION_BYTES = 256


class Controls(NamedTuple):
    regions: tuple[str, ...] | None = None
    """In order of preference; None: wherever the first token comes soonest."""
    budget_s: float | None = None
    session: bytes | None = None
    degrade: bool = False


NO_WISHES = Controls()
WISHES = frozenset((REGION, BUDGET_HEADER, POLICY_HEADER, SESSION, DEGRADE, TIMINGS))
"""Fields with which a client asks something of the proxy; most send none of them."""


def fields_of(headers: Collection[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Field name -> value; what is a list may come in several lines (RFC 9110, section 5.3).

    Raises ApiError 400 where a field that we act on is there twice.
    """
    fields = dict(headers)
    if len(fields) == len(headers):
        return fields
    for name in fields:
        values = [value for key, value in headers if key == name]
        if len(values) > 1 and name in ONCE:
            raise _refused(name, "is there more than once; send it once")
        if name == REGION:
            fields[name] = b",".join(values)
    return fields


def controls(fields: Mapping[bytes, bytes], regions: Collection[str]) -> Controls:
    """`regions`: those that may serve the tenant. Raises ApiError 400."""
    return Controls(
        _regions(fields.get(REGION), regions),
        _budget_s(fields.get(BUDGET_HEADER)),
        _session(fields.get(SESSION)),
        _degrade(fields.get(DEGRADE)),
    )


def _regions(value: bytes | None, allowed: Collection[str]) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = [name.strip() for name in value.decode("latin-1").split(",")]
    if not 0 < len(names) <= _MAX_REGIONS or not all(names):
        raise _refused(REGION, f"must name one region, or up to {_MAX_REGIONS} separated by commas")
    for name in names:
        if name not in allowed:  # the name is the client's, and which regions there are is not for everybody
            raise _refused(REGION, "names a region that does not serve you; leave it out, or name another")
    return tuple(dict.fromkeys(names))


def _budget_s(value: bytes | None) -> float | None:
    milliseconds = budget_ms(value)
    return None if milliseconds is None else milliseconds / 1e3


def _session(value: bytes | None) -> bytes | None:
    if value is not None and not 0 < len(value) <= _MAX_SESSION_BYTES:
        raise _refused(SESSION, f"must have 1 to {_MAX_SESSION_BYTES} characters")
    return value


def _degrade(value: bytes | None) -> bool:
    if value is None:
        return False
    if value.strip().lower() != b"allow":
        raise _refused(DEGRADE, "must be `allow`, or be left out")
    return True


def _refused(field: bytes, cause: str) -> ApiError:
    name = field.decode("ascii")
    return invalid(f"the field {name} {cause}", name, "invalid_value")
