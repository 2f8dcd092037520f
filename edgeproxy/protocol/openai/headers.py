"""Which header fields pass the proxy, in both directions. Names are lower case, as ASGI and our parsers give them.

Both tables name what passes; all else stays: a node must not learn a client's credentials, and a client must not learn
what a node says of itself. So hop-by-hop fields (RFC 9110 section 7.6.1) never pass either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Headers = list[tuple[bytes, bytes]]

TO_NODE = (b"traceparent", b"tracestate")
"""Trace context is passed on unchanged (W3C Trace Context, section 3.4)."""

TO_CLIENT = frozenset(
    {
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"retry-after",
        b"retry-after-ms",
        b"x-should-retry",
        b"x-edge-ignored",
        b"openai-processing-ms",
        b"openai-version",
        b"x-ratelimit-limit-requests",
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-requests",
        b"x-ratelimit-remaining-tokens",
        b"x-ratelimit-reset-requests",
        b"x-ratelimit-reset-tokens",
    }
)

_JSON_OUT: Headers = [
    (b"content-type", b"application/json"),
    (b"accept", b"application/json, text/event-stream"),
    # A coded body could be neither split into events nor passed on byte for byte to a client that asked for none.
    (b"accept-encoding", b"identity"),
]

STREAM_HEADERS: Headers = [
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]
"""What keeps caches and buffering proxies from holding an event stream back."""


def to_node(fields: Mapping[bytes, bytes], request_id: bytes) -> Headers:
    """Fields for a JSON request to a node, less its own credentials and the framing."""
    found = [*_JSON_OUT, (b"x-request-id", request_id)]
    for name in TO_NODE:
        if name in fields:
            found.append((name, fields[name]))
    return found


def to_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Fields of a node's answer that a client may see, less the framing."""
    return [field for field in headers if field[0] in TO_CLIENT]


def find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of a field."""
    for field in headers:
        if field[0] == name:
            return field[1]
    return None


def media_type(value: bytes | None) -> bytes:
    """`Application/JSON; charset=utf-8` -> `application/json`, `b""` where absent (RFC 9110 section 8.3)."""
    return (value or b"").partition(b";")[0].strip().lower()
