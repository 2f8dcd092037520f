"""Everything that nodes answer goes through the gateway, to the same path of the node."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from edgeproxy.gateway.paths import plain
from tests.gateway.drive import ask, chat, edge


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
