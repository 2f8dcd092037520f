"""A trace goes on where the client's field can be read, and begins anew where it cannot (W3C Trace Context)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.trace_context import TraceContext, decode

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_written_can_be_read(trace: int, span: int, sampled: bool) -> None:
    context = TraceContext(trace, span, sampled)
    assert decode(context.encode()) == context


def test_other_flags_and_later_versions_are_understood() -> None:
    assert decode(b"00-" + TRACE + b"-" + SPAN + b"-ff") == TraceContext(int(TRACE, 16), int(SPAN, 16), True)
    assert decode(b"00-" + TRACE + b"-" + SPAN + b"-02") == TraceContext(int(TRACE, 16), int(SPAN, 16), False)
    assert decode(b"cc-" + TRACE + b"-" + SPAN + b"-01-what-comes-later") is not None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"00-" + TRACE + b"-" + SPAN,
        b"00-" + TRACE + b"-" + SPAN + b"-01-more",
        b"ff-" + TRACE + b"-" + SPAN + b"-01",
        b"00-" + b"0" * 32 + b"-" + SPAN + b"-01",
        b"00-" + TRACE + b"-" + b"0" * 16 + b"-01",
        b"00-" + TRACE.upper() + b"-" + SPAN + b"-01",
        b"00-" + TRACE[:-1] + b"-" + SPAN + b"-01",
        b" 00-" + TRACE + b"-" + SPAN + b"-01",
    ],
)
def test_what_the_standard_says_to_ignore_is_ignored(value: bytes | None) -> None:
    assert decode(value) is None


@given(st.binary(max_size=80))
def test_no_bytes_are_a_fault(value: bytes) -> None:
    decode(value)
