"""The answers that the wire gives in an application's place, in the form that the API's clients parse."""

from __future__ import annotations

import os

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.wire.message_head import Headers


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


def body_too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body exceeds {limit} bytes; send a shorter one.", "request_too_large")
