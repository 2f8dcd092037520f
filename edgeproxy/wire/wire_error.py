"""The answers that the wire gives in an application's place, in the form that the API's clients parse."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from edgeproxy.protocol.openai.errors import ApiError

if TYPE_CHECKING:
    from edgeproxy.wire.limits import Limits
    from edgeproxy.wire.message_head import Headers, RequestHead


def wire_error(error: ApiError, request_id: bytes | None) -> tuple[Headers, bytes]:
    """Header fields and body. `request_id`: the application's, where one has run; else the answer gets its own, so
    that whoever reports it can be asked for it."""
    body = error.body()
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id or b"req_" + os.urandom(16).hex().encode()),
        *error.headers,
    ]
    return fields, body


def too_large(head: RequestHead, limits: Limits) -> ApiError | None:
    """What the head of an h2 or h3 request alone tells."""
    if len(head.headers) > limits.headers:
        return ApiError(
            431, f"The request has more than {limits.headers} header fields; send fewer.", "headers_too_large"
        )
    if len(head.target) > limits.target_bytes:
        return ApiError(414, f"The request target exceeds {limits.target_bytes} bytes; shorten it.", "uri_too_long")
    if head.content_length is not None and head.content_length > limits.body_bytes:
        return body_too_large(limits.body_bytes)
    return None


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body exceeds {limit} bytes; send a shorter one.", "request_too_large")


def excessive_load() -> ApiError:
    return ApiError(
        429,
        "The connection asked for more work than its requests are worth, and was closed; come with "
        "fewer frames that bring nothing, and take back fewer requests.",
        "excessive_load",
    )


def protocol_error() -> ApiError:
    return ApiError(400, "The connection was closed for an error of its protocol.", "protocol_error")


def too_slow() -> ApiError:
    return ApiError(408, "The request did not arrive in time; send it again.", "request_timeout")
