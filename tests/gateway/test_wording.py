"""What is wrong with a request is said in the same words, whoever looks at it first: the proxy or a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.schema import chat_request, parse_json
from tests.gateway.drive import ask, edge

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{" + MESSAGES + b"}",
        b'{"model":"\xff",' + MESSAGES + b"}",
        b'{"model":5,' + MESSAGES + b"}",
        b'{"model":"",' + MESSAGES + b"}",
        b'{"model":"m","stream":"yes",' + MESSAGES + b"}",
        b'{"model":"m","priority":"high",' + MESSAGES + b"}",
        b'{"model":"m","priority":2000,' + MESSAGES + b"}",
        b'{"model":"m","priority":1.5,' + MESSAGES + b"}",
    ],
)
async def test_proxy_and_node_say_the_same(tmp_path: Path, body: bytes) -> None:
    async with edge(tmp_path) as e:
        told: dict[str, Any] = (await ask(e.app, body)).json["error"]
    with pytest.raises(ApiError) as caught:
        chat_request(parse_json(body))
    assert (told["message"], told["param"], told["code"]) == (
        caught.value.message,
        caught.value.param,
        caught.value.code,
    )
