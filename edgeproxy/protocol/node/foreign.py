"""What servers other than our own say of themselves, each in its own words, made one: load, context, timings, errors.

Names as of vLLM 0.12 (`docs/usage/metrics`), SGLang 0.5 (`references/production_metrics`), llama.cpp's server
(`tools/server/README.md`). A server that tells less is used all the same: what is missing is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from edgeproxy.protocol.openai.errors import ApiError

MAX_METRICS_BYTES = 4 * 2**20
"""vLLM's exposition has some hundred kilobytes of histograms."""
_VALUE = rb"(?:\{[^\n]*\})?[ \t]+([0-9.eE+-]+|[+-]Inf|NaN)[ \t]*(?:[0-9]+)?\r?$"
_MOST = 1e9


class Gauges(NamedTuple):
    """The metrics' names; of several the first that is there."""

    running: tuple[bytes, ...]
    waiting: tuple[bytes, ...]
    kv_used: tuple[bytes, ...] = ()
    """A share, 0 to 1."""


GAUGES: Mapping[str, Gauges] = MappingProxyType(
    {
        "vllm": Gauges(
            (b"vllm:num_requests_running",),
            (b"vllm:num_requests_waiting",),
            (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
        ),
        "sglang": Gauges((b"sglang:num_running_reqs",), (b"sglang:num_queue_reqs",), (b"sglang:token_usage",)),
        "llamacpp": Gauges((b"llamacpp:requests_processing",), (b"llamacpp:requests_deferred",)),
    }
)
"""By kind of node; a kind that is not here has no metrics that we know."""


class Told(NamedTuple):
    """A server's load by its metrics."""

    running: int
    waiting: int
    kv_used: float | None
    """Share of the KV memory; None where it does not say."""


def load_of(kind: str, exposition: bytes) -> Told | None:
    """None where the text has not both counts, or they are no counts: then nothing is known."""
    names = GAUGES.get(kind)
    if names is None:
        return None
    running, waiting = _sum(names.running, exposition), _sum(names.waiting, exposition)
    if running is None or waiting is None:
        return None
    used = _mean(names.kv_used, exposition)
    return Told(round(running), round(waiting), None if used is None or used > 1.0 else used)


def context_of(answer: bytes, model: str) -> int | None:
    """Tokens of one request, from `/v1/models` (vLLM, SGLang: max_model_len) or `/props` (llama.cpp: n_ctx)."""
    try:
        value: Any = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict):
        return None
    settings = value.get("default_generation_settings")
    if isinstance(settings, dict):
        return _count(settings.get("n_ctx"))
    models = value.get("data")
    entries = [entry for entry in models if isinstance(entry, dict)] if isinstance(models, list) else []
    named = [entry for entry in entries if entry.get("id") == model]
    return next((found for entry in (named or entries) if (found := _count(entry.get("max_model_len")))), None)


class Timed(NamedTuple):
    """Seconds, by llama.cpp's `timings`."""

    prefill: float
    decode: float
    """All tokens after the prompt."""
    cached: int
    """Prompt tokens that were not computed again."""


def timings_of(value: Mapping[str, Any]) -> Timed | None:
    """`value`: a completion or a stream's last chunk."""
    timings = value.get("timings")
    if not isinstance(timings, dict):
        return None
    prefill, decode = _milliseconds(timings.get("prompt_ms")), _milliseconds(timings.get("predicted_ms"))
    if prefill is None or decode is None:
        return None
    return Timed(prefill, decode, _count(timings.get("cache_n")) or 0)


def shaped_error(status: int, body: bytes) -> bytes:
    """A 4xx answer as OpenAI shapes it: `{"error": {message, type, param, code}}`, all four always there.

    Some servers leave out fields, put the error at the top (SGLang, vLLM before 0.10) or answer as FastAPI does.
    """
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = None
    error = value.get("error", value) if isinstance(value, dict) else None
    if isinstance(error, dict) and value is not error and {"message", "type", "param", "code"} <= error.keys():
        return body
    found: dict[str, Any] = error if isinstance(error, dict) else {}
    message = found.get("message") or _detail(found.get("detail"))
    if not message and isinstance(error, str):
        message = error
    code, kind, param = found.get("code"), found.get("type"), found.get("param")
    return ApiError(
        status,
        message if isinstance(message, str) and message else f"the node refused the request with status {status}",
        code if isinstance(code, str) else None,
        param if isinstance(param, str) else None,
        kind if isinstance(kind, str) else None,
    ).body()


def _detail(value: object) -> str | None:
    """FastAPI's: text, or a list of what is wrong where."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    parts = [item for item in value if isinstance(item, dict) and isinstance(item.get("msg"), str)]
    return "; ".join(f"{'.'.join(map(str, _places(item.get('loc'))))}: {item['msg']}" for item in parts[:8]) or None


def _places(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else []


def _values(names: tuple[bytes, ...], text: bytes) -> list[float]:
    """Of the first name that is there: one for each set of labels (engines of a data-parallel server)."""
    for name in names:
        found = re.findall(rb"^" + re.escape(name) + _VALUE, text, re.MULTILINE)
        if found:
            return [_float(value) for value in found]
    return []


def _sum(names: tuple[bytes, ...], text: bytes) -> float | None:
    values = _values(names, text)
    total = sum(values)
    return total if values and 0 <= total < _MOST else None


def _mean(names: tuple[bytes, ...], text: bytes) -> float | None:
    values = _values(names, text)
    mean = sum(values) / len(values) if values else -1.0
    return mean if 0 <= mean < _MOST else None


def _float(value: bytes) -> float:
    try:
        return float(value)
    except ValueError:
        return -1.0


def _count(value: object) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST
    return value if sound and isinstance(value, int) else None


def _milliseconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST:
        return None
    return value / 1e3
