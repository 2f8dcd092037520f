"""The fields of a request about sampling that are more than one number: checked values out of parsed JSON, or a 400."""

from __future__ import annotations

from typing import Any

from edgeproxy.protocol.openai.checks import INT32, Json, boolean, integer, integer_of, number_of, wrong_type
from edgeproxy.protocol.openai.errors import invalid

MAX_BIASES = 300
MAX_STOP_IDS = 32
MAX_TOP_LOGPROBS = 20
BIAS = 100
"""Largest that is added to a logit, or taken off it."""
REPETITION = (0.01, 100.0)
"""Least and most penalty; vLLM takes any number above 0."""


def top_logprobs(present: Json) -> int | None:
    """How many of the likeliest tokens are told of beside each one; None: no log-probabilities at all."""
    wanted = boolean(present, "logprobs")
    top = integer(present, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise invalid("'top_logprobs' needs logprobs to be true.", "top_logprobs", "invalid_parameter_combination")
    return (top or 0) if wanted else None


def stop_token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type("stop_token_ids", "a list of token ids", value)
    if len(value) > MAX_STOP_IDS:
        raise invalid(
            f"'stop_token_ids' has more than {MAX_STOP_IDS} entries.", "stop_token_ids", "array_above_max_length"
        )
    return tuple(integer_of(item, f"stop_token_ids[{index}]", 0, INT32) for index, item in enumerate(value))


def logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    """(token id, what is added to its logit)."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object of token ids and numbers", value)
    if len(value) > MAX_BIASES:
        raise invalid(f"'logit_bias' has more than {MAX_BIASES} entries.", "logit_bias", "object_above_max_properties")
    found: dict[int, float] = {}
    for name, bias in value.items():
        if not (name.isascii() and name.isdigit() and len(name) <= len(str(INT32))):
            raise invalid("'logit_bias' has a key that is no token id.", "logit_bias", "invalid_value")
        found[int(name)] = number_of(bias, f"logit_bias.{name}", -BIAS, BIAS)
    return tuple(found.items())
