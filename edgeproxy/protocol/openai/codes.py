"""What an error's `code` may be, as far as it is counted and logged: a node's word is not let into a label unread."""

from __future__ import annotations

from typing import Any

OWN_BUDGET = "latency_budget_exceeded"
"""Of a request that would rather be refused than come too late: nobody else is, and no node is to blame."""
NODE_CODES = frozenset({
    "aborted", "array_above_max_length", "cannot_resume", "context_length_exceeded",
    "decimal_above_max_value", "decimal_below_min_value", "empty_array",
    "empty_string", "engine_failed", "insufficient_quota", "integer_above_max_value",
    "integer_below_min_value", "internal_error", "invalid_api_key", "invalid_json",
    "invalid_messages",
    "invalid_parameter_combination", "invalid_type", "invalid_value", "latency_budget_exceeded",
    "method_not_allowed", "misdirected_request", "missing_required_parameter", "model_not_found", "node_dead",
    "node_token", "numerics", "object_above_max_properties", "oom_predicted", "queue_full", "rate_limit_exceeded",
    "request_too_large", "slots_full", "string_above_max_length", "too_many_readers",
    "too_many_requests", "unknown_url", "unsupported_content_type",
    "unsupported_media_type", "unsupported_parameter", "unsupported_schema", "unsupported_value", "wait_predicted",
})  # fmt: skip
"""What our own nodes refuse with, and what OpenAI does that others imitate."""
_LIKELY = frozenset({400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 500, 501, 502, 503, 504})


def node_code(status: int, error: object) -> str:
    """The code of a node's error. `error`: its `error` object, or anything; where it gives no code that is known, the
    status says what there is to say: `node_429`."""
    found: Any = error.get("code") if isinstance(error, dict) else None
    if isinstance(found, str) and found in NODE_CODES:
        return found
    return f"node_{status}" if status in _LIKELY else f"node_{status // 100}xx"
