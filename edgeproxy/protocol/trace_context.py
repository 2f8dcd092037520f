"""W3C Trace Context, level 1: the `traceparent` field."""

from __future__ import annotations

import re
from typing import NamedTuple

FIELD = b"traceparent"
RESPONSE = b"traceresponse"
"""Of an answer: the span that its sender tells of itself (Trace Context, level 2, a draft)."""
_FORM = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


class TraceContext(NamedTuple):
    trace: int
    """128 bits, not zero."""
    span: int
    """64 bits, not zero: whose child comes next."""
    sampled: bool = True

    def encode(self) -> bytes:
        return b"00-%032x-%016x-%02x" % (self.trace, self.span, self.sampled)


def decode(value: bytes | None) -> TraceContext | None:
    """None for what the standard says to ignore: the trace then begins here (section 3.2.2.2 and 3.3)."""
    found = _FORM.fullmatch(value or b"")
    if found is None or found[1] == b"ff" or (found[1] == b"00" and found[5]):
        return None
    trace, span = int(found[2], 16), int(found[3], 16)
    if not trace or not span:
        return None
    return TraceContext(trace, span, bool(int(found[4], 16) & _SAMPLED))
