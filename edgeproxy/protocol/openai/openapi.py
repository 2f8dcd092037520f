"""The OpenAPI document of what a node answers, from the bounds and lists that requests are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edgeproxy.protocol.openai.checks import INT32
from edgeproxy.protocol.openai.completions import (
    COMPLETION_HONOURED,
    COMPLETION_UNSUPPORTED,
    MAX_LOGPROBS,
    MAX_PROMPT_TOKENS,
    MAX_PROMPTS,
)
from edgeproxy.protocol.openai.decoding import INTEGERS, MAX_STOP_CHARS, MAX_STOPS, NUMBERS
from edgeproxy.protocol.openai.fields import HONOURED, UNSUPPORTED
from edgeproxy.protocol.openai.formats import MAX_CHARS, MAX_CHOICES
from edgeproxy.protocol.openai.messages import MAX_CALLS, MAX_MESSAGES, MAX_NAME_CHARS, ROLES
from edgeproxy.protocol.openai.sampling import BIAS, MAX_BIASES, MAX_STOP_IDS, MAX_TOP_LOGPROBS
from edgeproxy.protocol.openai.schema import MAX_LABEL_CHARS, MAX_METADATA
from edgeproxy.protocol.openai.tools import MAX_DESCRIPTION, MAX_NAME, MAX_TOOLS, MODES

Schema = dict[str, Any]

_BOOLEAN: Final[Schema] = {"type": "boolean"}
_ANY_OBJECT: Final[Schema] = {"type": "object"}
_ERROR: Final[Schema] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {name: {"type": ["string", "null"]} for name in ("message", "type", "param", "code")},
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def document(version: str = "1") -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgeproxy", "version": version},
        "paths": {
            "/v1/chat/completions": _post("Answers a chat", _request(chat_fields(), ["model", "messages"])),
            "/v1/completions": _post("Goes on with a prompt", _request(completion_fields(), ["model", "prompt"])),
            "/tokenize": _post("The tokens of a prompt or a chat", _ANY_OBJECT),
            "/detokenize": _post("The text of tokens", _ANY_OBJECT),
            "/v1/models": {"get": {"summary": "The models", "responses": _responses()}},
            "/v1/models/{model}": {
                "get": {
                    "summary": "One model",
                    "parameters": [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}],
                    "responses": _responses(),
                }
            },
        },
    }


def chat_fields() -> dict[str, Schema]:
    own: dict[str, Schema] = {
        "messages": {"type": "array", "items": _message(), "minItems": 1, "maxItems": MAX_MESSAGES},
        "max_tokens": _whole(1, INT32),
        "max_completion_tokens": _whole(1, INT32),
        "logprobs": _BOOLEAN,
        "top_logprobs": _whole(0, MAX_TOP_LOGPROBS),
        "tools": {"type": "array", "items": _tool(), "maxItems": MAX_TOOLS},
        "tool_choice": {"anyOf": [{"enum": list(MODES)}, _ANY_OBJECT]},
        "parallel_tool_calls": _BOOLEAN,
        "chat_template_kwargs": _ANY_OBJECT,
        "continue_final_message": _BOOLEAN,
        "add_generation_prompt": _BOOLEAN,
    }
    return _with_neutral(_shared() | own, HONOURED, UNSUPPORTED)


def completion_fields() -> dict[str, Schema]:
    text, ids = {"type": "string"}, {"type": "array", "items": _whole(0, INT32), "maxItems": MAX_PROMPT_TOKENS}
    several = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": MAX_PROMPTS}
    own: dict[str, Schema] = {
        "prompt": {"anyOf": [text, ids, several]},
        "max_tokens": _whole(0, INT32),
        "logprobs": _whole(0, MAX_LOGPROBS),
        "echo": _BOOLEAN,
        "add_special_tokens": _BOOLEAN,
    }
    return _with_neutral(_shared() | own, COMPLETION_HONOURED, COMPLETION_UNSUPPORTED)


def _shared() -> dict[str, Schema]:
    label = {"type": "string", "maxLength": MAX_LABEL_CHARS}
    stop = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
    bias = {"type": "object", "additionalProperties": _number(-BIAS, BIAS), "maxProperties": MAX_BIASES}
    pattern = {"type": "string", "minLength": 1, "maxLength": MAX_CHARS}
    choices = {"type": "array", "items": pattern, "minItems": 1, "maxItems": MAX_CHOICES}
    schema = {"anyOf": [_ANY_OBJECT, {"type": "string"}]}
    return {
        "model": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARS},
        "stream": _BOOLEAN,
        "stream_options": {"type": "object", "properties": {"include_usage": _BOOLEAN}},
        **{name: {**_number(low, high), "default": default} for name, (low, high, default) in NUMBERS.items()},
        **{name: _whole(low, high) for name, (low, high) in INTEGERS.items()},
        "stop": {"anyOf": [stop, {"type": "array", "items": stop, "maxItems": MAX_STOPS}]},
        "stop_token_ids": {"type": "array", "items": _whole(0, INT32), "maxItems": MAX_STOP_IDS},
        "include_stop_str_in_output": _BOOLEAN,
        "ignore_eos": _BOOLEAN,
        "logit_bias": bias,
        "response_format": {
            "type": "object",
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema"]},
                "json_schema": {"type": "object", "required": ["name"]},
            },
            "required": ["type"],
        },
        "structured_outputs": {"type": "object", "minProperties": 1, "maxProperties": 1},
        "guided_json": schema,
        "guided_regex": pattern,
        "guided_choice": choices,
        "guided_grammar": pattern,
        "user": label,
        "safety_identifier": label,
        "prompt_cache_key": label,
        "metadata": {"type": "object", "additionalProperties": label, "maxProperties": MAX_METADATA},
    }


def _with_neutral(
    fields: dict[str, Schema], honoured: frozenset[str], unsupported: Mapping[str, tuple[Any, ...]]
) -> dict[str, Schema]:
    """Fields that are refused too, as far as some of their values ask for nothing."""
    neutral = {name: {"enum": list(values)} for name, values in unsupported.items() if values}
    return {name: schema for name, schema in fields.items() if name in honoured} | neutral


def _message() -> Schema:
    call = {"type": "object", "required": ["id", "function"]}
    part = {"type": "object", "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}
    return {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": part, "minItems": 1}]},
            "name": {"type": "string", "maxLength": MAX_NAME_CHARS},
            "tool_call_id": {"type": "string", "maxLength": MAX_NAME_CHARS},
            "tool_calls": {"type": "array", "items": call, "maxItems": MAX_CALLS},
        },
        "required": ["role"],
    }


def _tool() -> Schema:
    properties: dict[str, Schema] = {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]+$", "maxLength": MAX_NAME},
        "description": {"type": "string", "maxLength": MAX_DESCRIPTION},
        "parameters": _ANY_OBJECT,
        "strict": _BOOLEAN,
    }
    function = {"type": "object", "properties": properties, "required": ["name"], "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": function},
        "required": ["type", "function"],
    }


def _request(fields: dict[str, Schema], required: list[str]) -> Schema:
    return {"type": "object", "properties": fields, "required": required}


def _post(summary: str, schema: Schema) -> Schema:
    content = {"application/json": {"schema": schema}}
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": content},
            "responses": _responses(),
        }
    }


def _responses() -> Schema:
    refused = {"description": "Refused, and why", "content": {"application/json": {"schema": _ERROR}}}
    return {"200": {"description": "As OpenAI answers"}, "4XX": refused, "5XX": refused}


def _number(least: float, most: float) -> Schema:
    return {"type": "number", "minimum": least, "maximum": most}


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}
