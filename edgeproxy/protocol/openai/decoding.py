"""How an answer is sampled and where it ends: the fields that chat and completions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from edgeproxy.protocol.openai.checks import INT32, INT64, Json, boolean, integer, number, text, wrong_type
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import OPTIONS_HONOURED, OPTIONS_UNSUPPORTED, refuse_unsupported
from edgeproxy.protocol.openai.formats import Format, format_of
from edgeproxy.protocol.openai.messages import MAX_NAME_CHARS
from edgeproxy.protocol.openai.sampling import REPETITION, logit_bias, stop_token_ids

MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_CHOICES = 16
MAX_PRIORITY = 1000
NUMBERS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "temperature": (0, 2, 1.0),
        "top_p": (0, 1, 1.0),
        "min_p": (0, 1, 0.0),
        "repetition_penalty": (*REPETITION, 1.0),
        "frequency_penalty": (-2, 2, 0.0),
        "presence_penalty": (-2, 2, 0.0),
    }
)
"""Least, most, and what counts where the client says nothing."""
INTEGERS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "n": (1, MAX_CHOICES),
        "seed": (-INT64 - 1, INT64),
        "top_k": (-1, INT32),
        "min_tokens": (0, INT32),
        "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    }
)
"""Least and most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    model: str
    stream: bool
    include_usage: bool
    """A chunk with the usage at the end of the stream."""
    n: int
    """Answers to each prompt."""
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_is_told: bool
    """The stop string that ends the answer is a part of it."""
    seed: int | None
    temperature: float
    top_p: float
    top_k: int
    """0 keeps every token."""
    ignore_eos: bool
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    """(token id, what is added to its logit)."""
    min_tokens: int
    """Tokens before which no stop of any kind ends the answer."""
    stop_token_ids: tuple[int, ...]
    top_logprobs: int | None
    """Log-probabilities of so many of the likeliest tokens beside each token's own; None: none at all."""
    format: Format | None
    """None: any text will do."""
    priority: int | None
    """Lower runs earlier; counts where nothing trusted says otherwise."""
    ignored: tuple[str, ...]
    """Fields that nobody defines, at most MAX_IGNORED."""


def decoding_of(present: Json) -> dict[str, Any]:
    """All but `top_logprobs`, `max_tokens` and `ignored`, as keywords. Raises ApiError 400."""
    stream = boolean(present, "stream")
    return {
        "model": text(_required_model(present), "model", MAX_NAME_CHARS),
        "stream": stream,
        "include_usage": _include_usage(present.get("stream_options"), stream),
        "n": integer(present, "n", *INTEGERS["n"]) or 1,
        "stop": _stop(present.get("stop")),
        "stop_is_told": boolean(present, "include_stop_str_in_output"),
        "seed": integer(present, "seed", *INTEGERS["seed"]),
        **{name: number(present, name, *bounds) for name, bounds in NUMBERS.items()},
        "top_k": max(0, integer(present, "top_k", *INTEGERS["top_k"]) or 0),  # -1 is what other engines call "all"
        "ignore_eos": boolean(present, "ignore_eos"),
        "logit_bias": logit_bias(present.get("logit_bias")),
        "stop_token_ids": stop_token_ids(present.get("stop_token_ids")),
        "format": _format(present),
        "priority": integer(present, "priority", *INTEGERS["priority"]),
    }


def min_tokens_of(present: Json, most: int | None) -> int:
    least = integer(present, "min_tokens", *INTEGERS["min_tokens"]) or 0
    if most is not None and least > most:
        raise invalid("'min_tokens' is larger than 'max_tokens'.", "min_tokens", "invalid_parameter_combination")
    return least


def unknown_options(value: Any) -> list[str]:
    """Of `stream_options`. Raises ApiError 400."""
    if not isinstance(value, dict):
        return []
    present = {name: item for name, item in value.items() if item is not None}
    return refuse_unsupported(present, OPTIONS_HONOURED, OPTIONS_UNSUPPORTED, "stream_options.")


def _required_model(present: Json) -> Any:
    value = present.get("model")
    if value is None:
        raise invalid("'model' is missing.", "model", "missing_required_parameter")
    return value


def _format(present: Json) -> Format | None:
    found = format_of(present)
    if found is not None and boolean(present, "ignore_eos"):
        raise invalid(
            f"'ignore_eos' lets an answer go on where '{found.where}' says that it ends: send one of them.",
            "ignore_eos",
            "invalid_parameter_combination",
        )
    return found


def _include_usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong_type("stream_options", "an object", value)
    if not stream:
        raise invalid("'stream_options' is for streams only: set stream to true.", "stream_options", "invalid_value")
    return boolean(value, "include_usage", "stream_options.")


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list):
        raise wrong_type("stop", "a string or a list of strings", value)
    if len(stops) > MAX_STOPS:
        raise invalid(f"'stop' has more than {MAX_STOPS} strings.", "stop", "array_above_max_length")
    where = "stop" if isinstance(value, str) else "stop[{}]"
    return tuple(text(item, where.format(index), MAX_STOP_CHARS) for index, item in enumerate(stops))
