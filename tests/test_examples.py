"""Configurations that the documents show can be used, and do what they say."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from edgeproxy.cli import main
from edgeproxy.config_file import load, parse
from tests.fake_node import FakeNode
from tests.gateway.drive import ask, chat, edge

EXAMPLES = sorted((Path(__file__).parent.parent / "docs/examples").glob("*.yaml"))
LARGE = [path for path in EXAMPLES if path.stem in ("vllm", "sglang")]


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FRANKFURT_KEY", "VIRGINIA_KEY"):
        monkeypatch.setenv(name, f"of-{name}")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_passes_check(path: Path) -> None:
    told = CliRunner().invoke(main, ["check", "--config", str(path)])
    assert told.exit_code == 0, told.output


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
async def test_a_model_over_several_gpus_is_served_by_such_a_server_and_else_by_the_small_one(
    path: Path, tmp_path: Path
) -> None:
    assert len(LARGE) == 2
    text = Path(path).read_text()  # noqa: ASYNC240
    async with AsyncExitStack() as stack:
        servers: dict[str, FakeNode] = {}
        for node in (node for region in load(path).regions for node in region.nodes):
            assert node.kind == ("native" if "small" in node.models else path.stem)
            servers[node.name] = await stack.enter_async_context(
                FakeNode(overrides={"org/Big-70B": "ok", "small": "ok"})
            )
            text = text.replace(node.url, servers[node.name].url)
        config = parse(text, path)
        e = await stack.enter_async_context(
            edge(tmp_path, regions=config.regions, fallbacks=config.fallbacks, budgets=config.budgets)
        )
        assert (await ask(e.app, chat("big"))).status == 200
        ((name, received),) = [(name, one) for name, server in servers.items() for one in server.chats]
        assert received.json["model"] == "org/Big-70B"
        if path.stem == "sglang":
            assert received.header(b"authorization") == f"Bearer of-{name.partition('-')[0].upper()}_KEY".encode()
        for server in servers.values():
            if server is not servers["frankfurt-2"]:
                await server.stop()
        answered = await ask(e.app, chat("big"))
        assert answered.status == 200
        assert [one.json["model"] for one in servers["frankfurt-2"].chats] == ["small"]
