"""Everything that nodes answer goes through the gateway, to the same path of the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from edgeproxy.gateway.admit import parse_chat
from edgeproxy.gateway.paths import plain
from edgeproxy.protocol.openai.errors import ApiError
from tests.gateway.drive import ask, chat, edge


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


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/models", "/v1/models"),
        ("//v1/models", "/v1/models"),
        ("/v1//models/", "/v1/models"),
        ("/v1/models///", "/v1/models"),
        ("/", "/"),
        ("//", "/"),
        ("*", "*"),
    ],
)
def test_needless_slashes_mean_nothing(path: str, meant: str) -> None:
    assert plain(path) == meant


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions"])
async def test_a_path_joined_carelessly_is_answered_as_what_it_stands_for(tmp_path: Path, path: str) -> None:
    async with edge(tmp_path) as e:
        assert (await ask(e.app, chat("ok"), path=path)).status == 200
        assert e.near.chats[0].path == "/v1/chat/completions"
        models = await ask(e.app, method="GET", path="/v1/models/")
        assert (models.status, orjson.loads(models.body)["object"]) == (200, "list")


async def test_options_of_the_server_as_a_whole_are_told(tmp_path: Path) -> None:
    async with edge(tmp_path) as e:
        reply = await ask(e.app, method="OPTIONS", path="*")
        assert (reply.status, reply.body) == (204, b"")
        assert b"POST" in dict(reply.headers)[b"allow"]
