"""A request's ledger in its own answer, for clients that ask: beside the usage, which is the last that is told of it.

By then all is known, `relay` too. `Server-Timing` tells the same as far as it is known with the first content, and is
out of reach of most SDKs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from edgeproxy.gateway.account import Call
from edgeproxy.gateway.answer import Answer
from edgeproxy.gateway.controls import TIMINGS
from edgeproxy.protocol.openai.errors import ApiError, invalid
from edgeproxy.protocol.openai.sse import Event, encode

MEMBER = "edge_timings"


def asked(fields: Mapping[bytes, bytes], disclose: bool, stream: bool, counted: bool) -> bool:
    """`disclose`: the client may know of timings. `counted`: its stream is to tell the usage.

    Raises ApiError 400, 403.
    """
    value = fields.get(TIMINGS)
    if value is None:
        return False
    name = TIMINGS.decode("ascii")
    if value.strip().lower() != b"usage":
        raise invalid(f"the field {name} must be `usage`, or be left out", name, "invalid_value")
    if not disclose:
        raise ApiError(403, f"{name} is for tenants that may see timings; leave it out", "forbidden", name)
    if stream and not counted:
        wanted = 'stream_options {"include_usage": true}'
        raise invalid(f"{name} needs {wanted}: it stands beside the usage", name, "invalid_parameter_combination")
    return True


class Timings:
    """Of one answer."""

    def __init__(self, call: Call, answer: Answer) -> None:
        self._call = call
        self._answer = answer

    def in_event(self, event: Event) -> Event:
        """The same event, unless it tells the usage at the end of a stream."""
        if event.comment or b'"usage"' not in event.data:
            return event
        value = _object(event.data)
        if value is None or not value.get("usage") or not _last(value):
            return event
        data = self._added(value)
        return Event(data, encode(data))

    def apart(self, events: list[Event]) -> tuple[list[Event], list[Event]]:
        """Those before the first that may tell a usage, and the rest."""
        at = next((index for index, event in enumerate(events) if b'"usage"' in event.data), len(events))
        return events[:at], events[at:]

    def in_body(self, body: bytes) -> bytes:
        """A whole answer; as it came where it is none of a model."""
        value = _object(body)
        return body if value is None or not isinstance(value.get("usage"), dict) else self._added(value)

    def _added(self, value: dict[str, Any]) -> bytes:
        self._call.handed_at = self._answer.handed_at
        ledger = self._call.ledger()
        terms = {f"{name}_ms": _ms(seconds) for name, seconds in ledger._asdict().items() if seconds is not None}
        if ledger.wait is not None:
            terms["wait_ms"] = _ms(ledger.wait)
        return orjson.dumps(
            value | {MEMBER: terms | {"budget_ms": _ms(self._call.own_budget_s or self._call.budget_s)}}
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _last(chunk: dict[str, Any]) -> bool:
    """Some servers count with every chunk, and some with the one that finishes."""
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return False
    return all(isinstance(choice, dict) and choice.get("finish_reason") for choice in choices)
