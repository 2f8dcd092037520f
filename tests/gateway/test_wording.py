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


@pytest.mark.parametrize("body", [b"{", b'{"model":"m",}', b'{"model":"m"}}', b'{"model":"\\ud800"}'])
async def test_of_what_is_no_json_only_the_cause_is_told_in_the_readers_words(tmp_path: Path, body: bytes) -> None:
    async with edge(tmp_path) as e:
        told: dict[str, Any] = (await ask(e.app, body)).json["error"]
    with pytest.raises(ApiError) as caught:
        parse_json(body)
    same, _, cause = told["message"].partition(": ")
    assert caught.value.message.startswith(f"{same}: ")
    assert "byte" in cause
    assert (told["param"], told["code"]) == (caught.value.param, caught.value.code)
