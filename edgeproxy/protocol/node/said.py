"""What a native node says of itself is JSON, of bounded size, and believed only as far as it makes sense."""

from __future__ import annotations

from math import isfinite
from typing import Any

import orjson


def read_object(raw: bytes, what: str, limit: int) -> dict[str, Any]:
    """Raises ValueError, naming `what`, unless it is a JSON object of at most `limit` bytes."""
    if len(raw) > limit:
        raise ValueError(f"{what} of {len(raw)} bytes exceeds {limit}")
    try:
        value: Any = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    return value


def number(value: object) -> float | None:
    """None unless it is one, finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        return None
    return float(value)
