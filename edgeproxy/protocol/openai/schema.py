"""Chat requests: parsed JSON in, a frozen view or a clear 400 out. Never quotes what the client sent.

A field of the schema is honoured or refused, never dropped; `null` means absent. Fields that neither OpenAI nor this
project defines are collected in `ChatRequest.ignored`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from edgeproxy.protocol.openai.checks import (
    INT32,
    INT64,
    Json,
    boolean,
    integer,
    kind_of,
    number,
    required,
    text,
    wrong_type,
)
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import (
    HONOURED,
    MESSAGE_HONOURED,
    MESSAGE_UNSUPPORTED,
    UNSUPPORTED,
    refuse_unsupported,
)
from edgeproxy.protocol.openai.sampling import REPETITION, logit_bias, stop_token_ids, top_logprobs

MAX_MESSAGES = 4096
MAX_PROMPT_CHARS = 1 << 20
MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_NAME_CHARS = 256
MAX_IGNORED = 16

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Role in the request -> role in the template: `developer` is OpenAI's newer word for `system`."""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    """As templates take it."""
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    messages: tuple[Message, ...]
    stream: bool
    include_usage: bool
    """A chunk with the usage at the end of the stream."""
    max_tokens: int | None
    stop: tuple[str, ...]
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
    ignored: tuple[str, ...]
    """Fields that nobody defines, at most MAX_IGNORED."""

    @property
    def prompt_chars(self) -> int:
        return sum(len(message.content) for message in self.messages)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises ApiError 400."""
    if not body:
        raise invalid("The request has no body: send a JSON object.", code="invalid_json")
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not valid UTF-8 JSON: {error}.", code="invalid_json") from error
    if not isinstance(value, dict):
        raise invalid(f"The body is {kind_of(value)}: send a JSON object.", code="invalid_json")
    return value


def chat_request(body: Json) -> ChatRequest:
    """Raises ApiError 400 naming the field in `param`."""
    present = {name: value for name, value in body.items() if value is not None}
    ignored = refuse_unsupported(present, HONOURED, UNSUPPORTED, "")
    messages, more = _messages(required(present, "messages"))
    more.extend(f"stream_options.{name}" for name in _unknown_options(present.get("stream_options")))
    stream = boolean(present, "stream")
    return ChatRequest(
        model=text(required(present, "model"), "model", MAX_NAME_CHARS),
        messages=messages,
        stream=stream,
        include_usage=_include_usage(present.get("stream_options"), stream),
        max_tokens=_max_tokens(present),
        stop=_stop(present.get("stop")),
        seed=integer(present, "seed", -INT64 - 1, INT64),
        temperature=number(present, "temperature", 0, 2, 1.0),
        top_p=number(present, "top_p", 0, 1, 1.0),
        top_k=max(0, integer(present, "top_k", -1, INT32) or 0),  # -1 is what other engines call "all"
        ignore_eos=boolean(present, "ignore_eos"),
        min_p=number(present, "min_p", 0, 1, 0.0),
        repetition_penalty=number(present, "repetition_penalty", *REPETITION, 1.0),
        frequency_penalty=number(present, "frequency_penalty", -2, 2, 0.0),
        presence_penalty=number(present, "presence_penalty", -2, 2, 0.0),
        logit_bias=logit_bias(present.get("logit_bias")),
        min_tokens=_min_tokens(present),
        stop_token_ids=stop_token_ids(present.get("stop_token_ids")),
        top_logprobs=top_logprobs(present),
        ignored=(*ignored, *more)[:MAX_IGNORED],
    )


def _messages(value: Any) -> tuple[tuple[Message, ...], list[str]]:
    if not isinstance(value, list):
        raise wrong_type("messages", "a list of messages", value)
    if not value:
        raise invalid("'messages' is empty: send at least one message.", "messages", "empty_array")
    if len(value) > MAX_MESSAGES:
        raise invalid(
            f"'messages' has {len(value)} entries, at most {MAX_MESSAGES} are taken.",
            "messages",
            "array_above_max_length",
        )
    ignored: list[str] = []
    messages = tuple(_message(item, f"messages[{index}]", ignored) for index, item in enumerate(value))
    if sum(len(message.content) for message in messages) > MAX_PROMPT_CHARS:
        raise invalid(
            f"The messages have more than {MAX_PROMPT_CHARS} characters together: shorten them.",
            "messages",
            "context_length_exceeded",
        )
    return messages, ignored


def _message(value: Any, where: str, ignored: list[str]) -> Message:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    present = {name: item for name, item in value.items() if item is not None}
    _note(ignored, refuse_unsupported(present, MESSAGE_HONOURED, MESSAGE_UNSUPPORTED, f"{where}."))
    role = required(present, "role", f"{where}.")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"'{where}.role' must be one of {', '.join(ROLES)}.", f"{where}.role", "invalid_value")
    if role == "tool":
        text(required(present, "tool_call_id", f"{where}."), f"{where}.tool_call_id", MAX_NAME_CHARS)
    elif "tool_call_id" in present:
        raise invalid(f"'{where}.tool_call_id' is for role tool only.", f"{where}.tool_call_id", "invalid_value")
    return Message(ROLES[role], _content(required(present, "content", f"{where}."), f"{where}.content", ignored))


def _note(ignored: list[str], names: list[str]) -> None:
    ignored.extend(names[: MAX_IGNORED - len(ignored)])


def _content(value: Any, where: str, ignored: list[str]) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong_type(where, "a string or a list of text parts", value)
    return "\n".join(_part(part, f"{where}[{index}]", ignored) for index, part in enumerate(value))


def _part(value: Any, where: str, ignored: list[str]) -> str:
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    kind = required(value, "type", f"{where}.")
    if kind != "text":
        raise invalid(f"'{where}' is not text: this model reads text parts only.", where, "unsupported_content_type")
    found = required(value, "text", f"{where}.")
    if not isinstance(found, str):
        raise wrong_type(f"{where}.text", "a string", found)
    _note(ignored, [f"{where}.{name}" for name in value if name not in ("type", "text")])
    return found


def _include_usage(value: Any, stream: bool) -> bool:
    if value is None:
        return False
    if not isinstance(value, dict):
        raise wrong_type("stream_options", "an object", value)
    if not stream:
        raise invalid("'stream_options' is for streams only: set stream to true.", "stream_options", "invalid_value")
    if value.get("include_obfuscation"):
        raise invalid(
            "'stream_options.include_obfuscation' is not supported here yet: leave it out or send false.",
            "stream_options.include_obfuscation",
            "unsupported_parameter",
        )
    return boolean(value, "include_usage", "stream_options.")


def _unknown_options(value: Any) -> list[str]:
    known = ("include_usage", "include_obfuscation")
    return [name for name in value if name not in known] if isinstance(value, dict) else []


def _max_tokens(present: Json) -> int | None:
    older = integer(present, "max_tokens", 1, INT32)
    newer = integer(present, "max_completion_tokens", 1, INT32)
    if older is not None and newer is not None and older != newer:
        raise invalid(
            "'max_tokens' and 'max_completion_tokens' differ: send one of them.",
            "max_tokens",
            "invalid_parameter_combination",
        )
    return older if newer is None else newer


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


def _min_tokens(present: Json) -> int:
    least = integer(present, "min_tokens", 0, INT32) or 0
    most = _max_tokens(present)
    if most is not None and least > most:
        raise invalid("'min_tokens' is larger than 'max_tokens'.", "min_tokens", "invalid_parameter_combination")
    return least
