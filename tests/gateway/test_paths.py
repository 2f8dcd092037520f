"""Everything that nodes answer goes through the gateway, to the same path of the node."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from edgeproxy.gateway.admit import parse_chat
from edgeproxy.protocol.openai.errors import ApiError


def parsed(**fields: Any) -> Any:
    return parse_chat(orjson.dumps({"model": "m", **fields}))


def test_a_prompt_decides_where_a_request_goes_as_messages_do() -> None:
    assert parsed(prompt="Once upon a time").prompt == b'"Once upon a time"'
    assert parsed(tokens=[1, 2]).prompt == b"[1,2]"
    assert parsed(messages=[1], tools=[2]).prompt == b"[[2],[1]]"


@pytest.mark.parametrize("name", ["messages", "prompt"])
def test_a_body_nested_too_deeply_is_refused(name: str) -> None:
    body = b'{"model":"m","%b":%b%b}' % (name.encode(), b"[" * 500, b"]" * 500)
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")
