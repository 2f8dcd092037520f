"""Chat requests: parsed JSON in, a frozen view or a clear 400 out. Never quotes what the client sent.

A field of the schema is honoured or refused, never dropped; `null` means absent. Fields that neither OpenAI nor this
project defines are collected in `ChatRequest.ignored`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from edgeproxy.protocol.openai.checks import INT32, Json, boolean, integer, kind_of, required, text, wrong_type
from edgeproxy.protocol.openai.decoding import Decoding, decoding_of, min_tokens_of, unknown_options
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import HONOURED, UNSUPPORTED, Ignored, refuse_unsupported, without_best_of
from edgeproxy.protocol.openai.messages import MAX_PROMPT_CHARS, Message, messages_of
from edgeproxy.protocol.openai.sampling import top_logprobs
from edgeproxy.protocol.openai.tools import Tools, tools_of

MAX_LABEL_CHARS = 512
"""Of what names a user, a session or the like."""
MAX_METADATA = 16
RESERVED_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(Decoding):
    messages: tuple[Message, ...]
    tools: Tools
    continue_final_message: bool
    """The answer goes on with the last message."""
    template_kwargs: Json
    """What else the chat template is given."""

    @property
    def prompt_chars(self) -> int:
        return sum(message.chars for message in self.messages)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises ApiError 400."""
    if not body:
        raise invalid("The request has no body: send a JSON object.", code="invalid_json")
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"The body is not valid UTF-8 JSON: {_cause(body, error)}.", code="invalid_json") from error
    if not isinstance(value, dict):
        raise invalid(f"The body is {kind_of(value)}: send a JSON object.", code="invalid_json")
    return value


def _cause(body: bytes, error: orjson.JSONDecodeError) -> str:
    """The parser says of bytes that are no UTF-8 neither where they stand nor that it is they."""
    try:
        body.decode()
    except UnicodeDecodeError as found:
        return f"the byte 0x{body[found.start]:02x} at offset {found.start} is no part of a UTF-8 character"
    return str(error)


def chat_request(body: Json) -> ChatRequest:
    """Raises ApiError 400 naming the field in `param`."""
    present = without_best_of({name: value for name, value in body.items() if value is not None})
    ignored = Ignored(refuse_unsupported(present, HONOURED, UNSUPPORTED, ""))
    messages = messages_of(required(present, "messages"), ignored)
    ignored.add(unknown_options(present.get("stream_options")))
    tools = tools_of(present, ignored)
    check_labels(present)
    most = _max_tokens(present)
    return ChatRequest(
        **decoding_of(present),
        max_tokens=most,
        min_tokens=min_tokens_of(present, most),
        top_logprobs=top_logprobs(present),
        ignored=ignored.told(),
        messages=messages,
        tools=tools,
        continue_final_message=_continues(present, messages),
        template_kwargs=_template_kwargs(present.get("chat_template_kwargs")),
    )


def check_labels(present: Json) -> None:
    """Fields that name whom or what a request is for, and change nothing of its answer."""
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        if name in present and present[name] != "":
            text(present[name], name, MAX_LABEL_CHARS)
    metadata = present.get("metadata", {})
    if not isinstance(metadata, dict):
        raise wrong_type("metadata", "an object of strings", metadata)
    if len(metadata) > MAX_METADATA:
        raise invalid(f"'metadata' has more than {MAX_METADATA} entries.", "metadata", "object_above_max_properties")
    for name, value in metadata.items():
        if not isinstance(value, str) or len(name) > 64 or len(value) > MAX_LABEL_CHARS:
            raise invalid(
                f"'metadata' takes names of 64 and values of {MAX_LABEL_CHARS} characters.", "metadata", "invalid_value"
            )


def _continues(present: Json, messages: tuple[Message, ...]) -> bool:
    """vLLM's pair of fields: the prompt ends within the last message, instead of where the next one begins."""
    continues = boolean(present, "continue_final_message")
    begins = present.get("add_generation_prompt") is None or boolean(present, "add_generation_prompt")
    if not continues and not begins:
        raise invalid(
            "'add_generation_prompt' false needs continue_final_message: else nothing says whose turn it is.",
            "add_generation_prompt",
            "invalid_parameter_combination",
        )
    if continues and present.get("add_generation_prompt"):
        raise invalid(
            "'continue_final_message' goes on with a message, 'add_generation_prompt' begins one: send one of them.",
            "continue_final_message",
            "invalid_parameter_combination",
        )
    last = messages[-1]
    if continues and (last.role != "assistant" or not last.content.strip() or last.tool_calls):
        raise invalid(
            "'continue_final_message' needs a last message of role assistant with text.",
            "continue_final_message",
            "invalid_value",
        )
    return continues


def _template_kwargs(value: Any) -> Json:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong_type("chat_template_kwargs", "an object", value)
    for name in value:
        if name in RESERVED_KWARGS:
            raise invalid(
                "'chat_template_kwargs' has a name that the request says elsewhere: take it out.",
                "chat_template_kwargs",
                "invalid_value",
            )
    return value


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


__all__ = ["MAX_PROMPT_CHARS", "ChatRequest", "Message", "chat_request", "parse_json"]
