"""What is wrong with a request's body before its fields are looked at: told alike by proxy and node."""

from __future__ import annotations

from edgeproxy.protocol.openai.errors import ApiError

_MEDIA = "unsupported_media_type"


def not_json() -> ApiError:
    return ApiError(415, "The body must be JSON in UTF-8: send content-type: application/json.", code=_MEDIA)


def compressed() -> ApiError:
    uncoded = ((b"accept-encoding", b"identity"),)  # RFC 9110 section 15.5.16
    cause = "The body must not be compressed: leave content-encoding out."
    return ApiError(415, cause, code=_MEDIA, headers=uncoded)


def too_large(limit: int, *, closes: bool = False) -> ApiError:
    """`closes`: the connection, since the rest of the body is not read."""
    headers = ((b"connection", b"close"),) if closes else ()
    cause = f"The body is larger than {limit} bytes: shorten the conversation."
    return ApiError(413, cause, code="request_too_large", headers=headers)
