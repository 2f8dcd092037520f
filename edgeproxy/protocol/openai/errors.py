"""OpenAI-shaped errors: one exception type that proxy and node raise and render alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@dataclass(eq=False)
class ApiError(Exception):
    """An answer with `{"error": {"message", "type", "param", "code"}}`, all four keys always present.

    `message` names the thing, the cause and the remedy, and never quotes prompts or keys.
    Not frozen: the interpreter writes `__traceback__` on a raised exception.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    type: str | None = None
    """Derived from the status when absent."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    recovery: dict[str, Any] | None = None
    """How the client can succeed (`max_tokens_that_fit`, `retry_after_ms`, `retry_region`) where memory is short."""

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    def body(self) -> bytes:
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type or _TYPES.get(self.status) or _type_of(self.status),
            "param": self.param,
            "code": self.code,
        }
        if self.recovery is not None:
            error["recovery"] = self.recovery
        return orjson.dumps({"error": error})


def _type_of(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the request itself is wrong; sending it again will not help."""
    return ApiError(400, message, code, param)
