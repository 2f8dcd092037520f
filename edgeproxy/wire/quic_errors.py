"""Why QUIC connections end, in the RFCs' words and in those of the request log."""

from __future__ import annotations

from aioquic.h3.connection import ErrorCode
from aioquic.quic.packet import QuicErrorCode

from edgeproxy.client.any_quic import Ending
from edgeproxy.observe.quic import OTHER
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.wire_error import excessive_load, protocol_error

_QUIC = {code.value: code.name for code in QuicErrorCode}
_H3 = {code.value: code.name for code in ErrorCode} | {0: "NO_ERROR"}
_ALERTS = range(0x100, 0x200)
"""QUIC's codes for alerts of TLS (RFC 9001 section 4.8)."""


def error_name(ending: Ending) -> str:
    """Of a table, or `other`."""
    if ending.application:
        return _H3.get(ending.code, OTHER)
    return "CRYPTO_ERROR" if ending.code in _ALERTS else _QUIC.get(ending.code, OTHER)


def handshake_failure(ending: Ending | None) -> str:
    """What became of a handshake that was not completed."""
    if ending is None:
        return "unreadable"
    if ending.by == "us":
        return "cut" if ending.application else "failed"
    return "closed_by_peer" if ending.by == "peer" else "timed_out"


def cause(ending: Ending | None) -> ApiError | None:
    """What is to be told of requests that a connection took with it when we ended it for something wrong; None where
    the client has left, or is not heard of any more."""
    if ending is None or ending.by != "us" or error_name(ending) in ("NO_ERROR", "H3_NO_ERROR"):
        return None
    if error_name(ending) == "H3_EXCESSIVE_LOAD":
        return excessive_load()
    if error_name(ending) in ("INTERNAL_ERROR", "H3_INTERNAL_ERROR"):
        return ApiError(500, "The connection failed in the proxy; it is safe to try again.", "internal_error")
    return protocol_error()
