"""The document says what the checks do: at every bound, and of every field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgeproxy.protocol.openai.completions import COMPLETION_HONOURED, COMPLETION_UNSUPPORTED, completion_request
from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.fields import HONOURED, UNSUPPORTED
from edgeproxy.protocol.openai.openapi import chat_fields, completion_fields, document
from edgeproxy.protocol.openai.schema import chat_request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi", "echo": True}
ENDPOINTS: list[tuple[Callable[[Any], Any], dict[str, Any], dict[str, Any]]] = [
    (chat_request, CHAT, chat_fields()),
    (completion_request, TEXT, completion_fields()),
]


def refused(read: Callable[[Any], Any], body: dict[str, Any]) -> bool:
    try:
        read(body)
    except ApiError as error:
        assert error.status == 400
        return True
    return False


def context(name: str) -> dict[str, Any]:
    """What else a field needs."""
    needed: dict[str, dict[str, Any]] = {"top_logprobs": {"logprobs": True}, "min_tokens": {"max_tokens": 2**31 - 1}}
    return needed.get(name, {})


@pytest.mark.parametrize(("read", "least", "fields"), ENDPOINTS)
def test_bounds_are_those_that_are_checked(
    read: Callable[[Any], Any], least: dict[str, Any], fields: dict[str, Any]
) -> None:
    checked = 0
    for name, schema in fields.items():
        if "minimum" not in schema:
            continue
        body = {**least, **context(name)}
        step = 1 if schema["type"] == "integer" else 0.001
        for value in (schema["minimum"], schema["maximum"]):
            assert not refused(read, {**body, name: value}), (name, value)
        for value in (schema["minimum"] - step, schema["maximum"] + step):
            assert refused(read, {**body, name: value}), (name, value)
        checked += 1
    assert checked > 9


@pytest.mark.parametrize(("read", "least", "fields"), ENDPOINTS)
def test_values_of_a_list_are_taken_and_others_are_not(
    read: Callable[[Any], Any], least: dict[str, Any], fields: dict[str, Any]
) -> None:
    for name, schema in fields.items():
        for value in schema.get("enum", ()):
            assert not refused(read, {**least, name: value}), (name, value)
        if "enum" in schema:
            assert refused(read, {**least, name: "something else"}), name
        if schema.get("type") == "boolean":
            assert refused(read, {**least, name: "yes"}), name


def test_every_field_is_there_that_is_honoured_and_none_that_is_only_refused() -> None:
    for fields, honoured, unsupported in (
        (chat_fields(), HONOURED, UNSUPPORTED),
        (completion_fields(), COMPLETION_HONOURED, COMPLETION_UNSUPPORTED),
    ):
        assert set(fields) == honoured | {name for name, neutral in unsupported.items() if neutral}


def test_the_document_names_every_path() -> None:
    assert set(document("1")["paths"]) >= {"/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/models/{model}"}
